use std::time::Duration;

use tokio::time::Instant;

/// When a request is of no more use to who sent it. Put one into a request's
/// extensions: a layer lets the request wait for its turn no longer than that,
/// and rejects it at once where it would have to.
///
/// It says nothing of how long the work itself may take. A gRPC call needs none:
/// its `grpc-timeout` is one.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::descriptor::Deadline;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline::after(Duration::from_millis(250)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deadline {
    /// `None`: later than can be said.
    at: Option<Instant>,
}

impl Deadline {
    /// So much later than now, on Tokio's clock.
    #[must_use]
    pub fn after(duration: Duration) -> Self {
        Self { at: Instant::now().checked_add(duration) }
    }

    /// At this moment.
    #[must_use]
    pub fn at(instant: Instant) -> Self {
        Self { at: Some(instant) }
    }

    /// What is left of it; zero once it is over.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_runs_down_to_zero_and_never_overflows() {
        let deadline = Deadline::after(Duration::from_secs(2));
        assert_eq!(deadline, Deadline::at(Instant::now() + Duration::from_secs(2)));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(deadline.remaining(), Duration::from_millis(1_500));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(deadline.remaining(), Duration::ZERO);
        assert_eq!(Deadline::after(Duration::MAX).remaining(), Duration::MAX);
    }
}
