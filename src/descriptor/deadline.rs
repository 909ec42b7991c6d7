//! [`Deadline`]: until when a request may wait for the limiter.

use std::time::Duration;

use tokio::time::Instant;

/// When a request becomes useless to its sender. In a request's extensions, it
/// bounds how long a layer lets the request wait: a request that would have to
/// wait longer is rejected at once.
///
/// It does not bound the work itself. A gRPC call needs none, because its
/// `grpc-timeout` acts as one.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::descriptor::Deadline;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline::after(Duration::from_millis(250)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Deadline {
    /// `None`: later than an instant can express.
    at: Option<Instant>,
}

impl Deadline {
    /// A deadline `duration` from now, on Tokio's clock.
    pub fn after(duration: Duration) -> Self {
        Self { at: Instant::now().checked_add(duration) }
    }

    /// A deadline at `instant`.
    pub fn at(instant: Instant) -> Self {
        Self { at: Some(instant) }
    }

    /// The time that is left; zero once it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests;
