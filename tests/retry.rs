//! Retries, in tokio's paused time; and once over real sockets.
#![allow(clippy::unwrap_used)]

mod common;

#[path = "retry/budget.rs"]
mod budget;
#[path = "retry/cancel.rs"]
mod cancel;
#[path = "retry/cloning.rs"]
mod cloning;
#[path = "retry/deadlines.rs"]
mod deadlines;
#[path = "retry/ours.rs"]
mod ours;
#[path = "retry/sockets.rs"]
mod sockets;
#[path = "retry/upstream.rs"]
mod upstream;

use std::{
    future::{Ready, ready},
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use http::{Method, Request, Response};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceExt, retry::RetryLayer};
use tower_ratelimit::{
    Policy, RateLimiter, RetryPolicy,
    retry::{CloneRequest, RetryAttempt},
    testing::TokioClock,
};

type Answer = Response<&'static str>;

/// A request that reached the upstream.
#[derive(Clone, Debug)]
struct Sent {
    at: Instant,
    method: Method,
    attempt: Option<RetryAttempt>,
}

/// Answers the n-th request, from 0 on, by a function.
#[derive(Clone)]
struct Upstream {
    answer: Arc<dyn Fn(usize) -> Result<Answer, BoxError> + Send + Sync>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Upstream {
    fn new(answer: impl Fn(usize) -> Result<Answer, BoxError> + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), sent: Arc::default() }
    }

    /// Rejects the first requests, then answers.
    fn rejecting(first: usize, status: u16, headers: &'static [(&str, &str)]) -> Self {
        Self::new(move |n| Ok(if n < first { answer(status, headers) } else { answer(200, &[]) }))
    }

    fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }

    fn sends(&self) -> usize {
        self.sent().len()
    }

    /// The time between each request and the next.
    fn gaps(&self) -> Vec<Duration> {
        self.sent().windows(2).map(|pair| pair[1].at - pair[0].at).collect()
    }
}

impl<B> Service<Request<B>> for Upstream {
    type Response = Answer;
    type Error = BoxError;
    type Future = Ready<Result<Answer, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let attempt = request.extensions().get().copied();
        let mut sent = self.sent.lock().unwrap();
        sent.push(Sent { at: Instant::now(), method: request.method().clone(), attempt });
        ready((self.answer)(sent.len() - 1))
    }
}

fn answer(status: u16, headers: &[(&str, &str)]) -> Answer {
    let builder = Response::builder().status(status);
    headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body("said").unwrap()
}

fn request(method: Method) -> Request<String> {
    Request::builder().method(method).uri("https://api.example.com/v1/things").body("body".to_owned()).unwrap()
}

fn get() -> Request<String> {
    request(Method::GET)
}

/// The result of one request through the policy around `service`.
async fn send<S, B, C>(service: &S, retry: &RetryPolicy<C>, request: Request<B>) -> Result<S::Response, BoxError>
where
    S: Service<Request<B>, Response = Answer, Error = BoxError> + Clone,
    C: CloneRequest<Request<B>> + Clone,
{
    RetryLayer::new(retry.clone()).layer(service.clone()).oneshot(request).await
}

/// A limiter in tokio's time.
fn limiter(policy: impl Into<Policy>) -> RateLimiter {
    RateLimiter::builder().policy(policy).clock(TokioClock::default()).build().unwrap()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Timers fire up to a millisecond late.
const TIMER: Duration = Duration::from_millis(1);
