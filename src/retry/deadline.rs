//! The deadline of an attempt: no retry outlasts it.

use std::time::Duration;

use http::Request;
use tokio::time::Instant;

use crate::descriptor::{Deadline, grpc};

/// The start of an attempt. Its timeout counts from there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt(Instant);

impl Attempt {
    pub(super) fn begins() -> Self {
        Self(Instant::now())
    }

    /// Whether the request may wait for `delay` and still be sent. If so, its
    /// `grpc-timeout` becomes the time that is left.
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
