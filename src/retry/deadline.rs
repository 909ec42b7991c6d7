use std::time::Duration;

use http::Request;
use tokio::time::Instant;

use crate::descriptor::{Deadline, grpc};

/// Since when an attempt is under way; its timeout has run since then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt(Instant);

impl Attempt {
    pub(super) fn begins() -> Self {
        Self(Instant::now())
    }

    /// Whether a request can wait for so long before it is sent again. Its
    /// `grpc-timeout` is then what is left of it.
    pub(super) fn outlasts<B>(self, delay: Duration, request: &mut Request<B>) -> bool {
        let deadline = request.extensions().get::<Deadline>().map(Deadline::remaining);
        let timeout = grpc::timeout(request.headers()).map(|timeout| timeout.saturating_sub(self.0.elapsed()));
        if deadline.into_iter().chain(timeout).any(|left| left <= delay) {
            return false;
        }
        if let Some(timeout) = timeout {
            request.headers_mut().insert(grpc::GRPC_TIMEOUT, grpc::timeout_of(timeout.saturating_sub(delay)));
        }
        true
    }
}
