//! The layers under test, each called without a server.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use axum::{body::Body, extract::ConnectInfo};
use http::{HeaderName, Request, Response, StatusCode};
use tower::Service;

#[cfg(feature = "ours")]
use crate::ours;
use crate::{
    keys::Caller,
    layers,
    race::{Contestant, Meter, now},
};

/// A `static`, because one of the peers needs a `'static` reference.
pub static API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// How the tenant is identified.
#[derive(Clone, Copy)]
pub enum Per {
    Peer,
    ApiKey,
}

/// A limit that never rejects, or one an hour that is used up.
#[derive(Clone, Copy, PartialEq)]
pub enum Limit {
    Plenty,
    Exhausted,
}

pub struct Contender {
    pub contestant: Contestant<Caller>,
    pub headers: bool,
}

/// A name, whether the layer sends headers with admissions, and a constructor.
type Entry = (&'static str, bool, fn(&'static str, Per, Limit) -> Contestant<Caller>);

/// The first entry is the bare service, which rejects no request.
const ENTRIES: &[Entry] = &[
    ("no layer", false, |name, _, _| contestant(name, NoOp, Limit::Plenty)),
    ("tower_governor", false, layers::tower_governor),
    ("tower_governor, headers", true, layers::tower_governor_headers),
    ("axum-governor", true, layers::axum_governor),
    ("rate-net", false, |name, per, limit| layers::rate_net(name, per, limit, false)),
    ("rate-net, headers", true, |name, per, limit| layers::rate_net(name, per, limit, true)),
    ("throttle-kit", true, layers::throttle_kit),
    #[cfg(feature = "tower-rate-limiter")]
    ("tower-rate-limiter", true, layers::tower_rate_limiter),
    #[cfg(feature = "ours")]
    ("tower-ratelimit", false, |name, per, limit| ours::layer(name, per, limit, false)),
    #[cfg(feature = "ours")]
    ("tower-ratelimit, headers", true, |name, per, limit| ours::layer(name, per, limit, true)),
];

pub fn all(per: Per, limit: Limit) -> Vec<Contender> {
    let make = |&(name, headers, make): &Entry| Contender { contestant: make(name, per, limit), headers };
    ENTRIES.iter().map(make).collect()
}

/// Measures `service`. Requests are created outside the measured interval.
pub fn contestant<S, B>(name: &'static str, service: S, limit: Limit) -> Contestant<Caller>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
{
    const BATCH: usize = 64;
    let expected = match limit {
        Limit::Plenty => StatusCode::OK,
        Limit::Exhausted => StatusCode::TOO_MANY_REQUESTS,
    };
    let service = Mutex::new(service);
    // The first pass uses up the quota of each key.
    let used_up = AtomicBool::new(limit == Limit::Plenty);
    Contestant::new(name, move |callers, start, calls| {
        let mut service = service.lock().expect("a lock that is not poisoned").clone();
        let mut context = Context::from_waker(Waker::noop());
        let mut meter = Meter::default();
        let mut next = callers[start..].iter().chain(callers.iter().cycle());
        let mut batch = Vec::with_capacity(BATCH);
        let mut left = calls;
        let mut unexpected = 0;
        while left > 0 {
            let size = left.min(BATCH);
            batch.extend(next.by_ref().take(size).map(request));
            left -= size;
            meter.measure(|| {
                for request in batch.drain(..) {
                    let ready = service.poll_ready(&mut context);
                    assert!(matches!(ready, Poll::Ready(Ok(()))), "{name} is not ready");
                    let response = black_box(now(service.call(black_box(request))));
                    unexpected += usize::from(response.is_ok_and(|r| r.status() != expected));
                }
            });
        }
        let first = !used_up.swap(true, Relaxed);
        assert!(first || unexpected == 0, "{name} answered other than {expected}");
        meter
    })
}

fn request(caller: &Caller) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(&API_KEY, caller.api_key.clone());
    request.extensions_mut().insert(ConnectInfo(caller.peer));
    request
}

#[derive(Clone, Copy)]
pub struct NoOp;

impl Service<Request<Body>> for NoOp {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        drop(black_box(request));
        ready(Ok(Response::new(Body::empty())))
    }
}
