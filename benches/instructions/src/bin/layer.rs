//! A layer over a service that does nothing but set two headers: `CASE COUNT`, for
//! `scripts/instructions`. One request is sent again and again, with the API keys of
//! 1,000 callers in turn; in `bare-peer` and `layer-peer`, with their addresses.
//!
//! A binary of its own: in one with the decisions, less of those is inlined.

use std::{
    convert::Infallible,
    env,
    future::{Future, Ready, ready},
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use http::{
    HeaderName, HeaderValue, Request, Response,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::Full;
use tower_layer::Layer;
use tower_ratelimit::{Headers, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant::{self, PeerAddr}};
use tower_service::Service;

const CALLERS: u32 = 1_000;

static API_KEY: HeaderName = HeaderName::from_static("x-tenant");

type Body = Full<bytes::Bytes>;

/// Answers at once, and keeps the request to be sent again.
#[derive(Clone, Default)]
struct NoOp {
    request: Arc<Mutex<Option<Request<()>>>>,
    /// Whether to drop the request and answer with an empty response: what a
    /// rejection is compared to.
    rejects: bool,
}

impl Service<Request<()>> for NoOp {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        if self.rejects {
            return ready(Ok(Response::new(Body::default())));
        }
        *self.request.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
        let mut response = Response::new(Body::default());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("5"));
        ready(Ok(response))
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let [_, case, count] = arguments.as_slice() else { return ExitCode::FAILURE };
    let Ok(count) = count.parse() else { return ExitCode::FAILURE };
    let headers = match &**case {
        "bare" | "bare-peer" | "bare-reject" => None,
        "layer" | "layer-peer" | "layer-concurrent" | "layer-adaptive" => Some(Headers::NONE),
        "layer-three" => Some(Headers::X_RATELIMIT),
        "layer-five" => Some(Headers::ALL),
        "reject" | "reject-top" => Some(Headers::NONE),
        "reject-five" => Some(Headers::ALL),
        _ => return ExitCode::FAILURE,
    };
    let no_op = NoOp { rejects: case == "bare-reject", ..NoOp::default() };
    let by_peer = case.ends_with("-peer");
    match headers {
        None => run(&no_op, no_op.clone(), by_peer, count),
        Some(headers) => {
            // What a server can take has one limit for all callers.
            let in_flight = |quota| Policy::new().rule(Rule::new("server").per([]).tier(quota));
            // No request is rejected, whatever the count, or nearly all are.
            let policy = match &**case {
                "reject" | "reject-top" | "reject-five" => Quota::per_day(1).into(),
                "layer-concurrent" => in_flight(Quota::concurrent(20)),
                "layer-adaptive" => in_flight(Quota::adaptive_concurrency(20..=200)),
                _ => Quota::per_minute(60_000_000_000).into(),
            };
            let top = if case.ends_with("-top") { 256 } else { 0 };
            let limiter = RateLimiter::builder().policy(policy).top_tenants(top).build().expect("a valid policy");
            let layer = RateLimitLayer::new(limiter).headers(headers);
            // Without an extractor, the tenant is the peer's address.
            let layer = if by_peer { layer } else { layer.tenant(tenant::header(&API_KEY)) };
            run(&no_op, layer.layer(no_op.clone()), by_peer, count);
        }
    }
    ExitCode::SUCCESS
}

/// What tells the caller of a request.
enum Caller {
    ApiKey(HeaderValue),
    Peer(PeerAddr),
}

impl Caller {
    fn new(number: u32, by_peer: bool) -> Self {
        if by_peer {
            return Self::Peer(PeerAddr(SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + number), 40_000))));
        }
        Self::ApiKey(HeaderValue::try_from(format!("tenant-{number:07}")).expect("a valid value"))
    }

    #[inline(always)]
    fn send(&self, request: &mut Request<()>) {
        match self {
            Self::ApiKey(key) => drop(request.headers_mut().insert(&API_KEY, key.clone())),
            Self::Peer(peer) => match request.extensions_mut().get_mut() {
                Some(known) => *known = *peer,
                None => drop(request.extensions_mut().insert(*peer)),
            },
        }
    }
}

/// Sends requests through a service over `no_op`.
fn run<S, B>(no_op: &NoOp, mut service: S, by_peer: bool, count: usize)
where
    S: Service<Request<()>, Response = Response<B>>,
{
    let callers: Vec<_> = (0..CALLERS).map(|number| Caller::new(number, by_peer)).collect();
    // Each caller's counter exists, and the layer has looked at its first requests.
    call_repeatedly(no_op, &mut service, &callers, 12 * callers.len());
    decide_repeatedly(no_op, &mut service, &callers, count);
}

/// Callgrind collects only in here.
#[inline(never)]
fn decide_repeatedly<S, B>(no_op: &NoOp, service: &mut S, callers: &[Caller], count: usize)
where
    S: Service<Request<()>, Response = Response<B>>,
{
    call_repeatedly(no_op, service, callers, count);
}

#[inline(always)]
fn call_repeatedly<S, B>(no_op: &NoOp, service: &mut S, callers: &[Caller], count: usize)
where
    S: Service<Request<()>, Response = Response<B>>,
{
    let mut context = Context::from_waker(Waker::noop());
    for caller in callers.iter().cycle().take(count) {
        let sent = no_op.request.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut request = sent.unwrap_or_else(first_request);
        caller.send(&mut request);
        assert!(service.poll_ready(&mut context).is_ready());
        let Poll::Ready(response) = pin!(service.call(request)).poll(&mut context) else {
            unreachable!("a local decision is ready at the first poll")
        };
        black_box(response.is_ok());
    }
}

fn first_request() -> Request<()> {
    let request = Request::get("/hello").header("host", "localhost:3000").header("user-agent", "bench/1.0");
    let request =
        request.header("accept", "*/*").header("accept-encoding", "gzip").header("x-request-id", "0123456789");
    request.body(()).expect("a valid request")
}
