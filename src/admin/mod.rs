//! A page for operators, and the same as JSON: [`Admin`].
//!
//! It shows the policy in force, the requests and top tenants of each rule, the state of the
//! backend, signals of overload, and what a tenant's counters have left; and it resets
//! counters, overrides a tenant's tiers and blocks tenants, each for a while.
//!
//! It is one URL, read by `GET` and acted on by `POST`. It decides no request, and authenticates no
//! caller: an operator does that in front of it. `report.rs` has what is shown, `action.rs` what is
//! done. Invariants: a page of another origin, in an operator's browser, can neither read nor act,
//! and every response has the headers that keep a browser from running or storing anything of it.

mod action;
mod escape;
mod report;

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use askama::Template;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{
        ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, FORWARDED, HOST, REFERRER_POLICY, VIA,
    },
    uri::Authority,
};
use http_body::Body;
use http_body_util::{BodyExt, Full, Limited};
use serde_json::json;
use tower_service::Service;

use self::{
    action::{Action, Asked},
    report::{Page, Report, SourceReport, content_security_policy, lines, plain},
};
#[cfg(feature = "watch")]
use crate::policy_source::{WatchHandle, WatchStatus};
use crate::{
    http::{RequestHead, peer},
    limiter::RateLimiter,
};

/// The most bytes of an action.
const MAX_BODY: usize = 64 * 1_024;

/// A page for operators, as a Tower service: what a limiter does, why it rejects a request, and
/// what an operator may do about it. Mount it at one path, beside the routes that are limited.
///
/// - `GET` shows the page, or JSON with `Accept: application/json` or `?format=json`. The query
///   `tenant=acme&path=/search` (also `method`, `plan`, and `key=ip=192.0.2.7`) explains such a
///   request, see [`RateLimiter::explain`].
/// - `POST` acts, with the header `x-tower-ratelimit: 1` and one of these as JSON:
///   `{"action":"reset","request":{"tenant":"acme","path":"/search"}}`,
///   `{"action":"override","tenant":"acme","rule":"search","tiers":[{"limit":9,"window":"1s"}],"ttl":"1h"}`,
///   `{"action":"block","tenant":"acme","ttl":"15m"}`, `{"action":"lift","tenant":"acme"}`.
///   See [`RateLimiter::override_tiers`] and [`RateLimiter::block`].
///
/// Only programs on the same machine may use it: others, requests that a proxy has forwarded,
/// and hosts other than `localhost` or a loopback address get 403. The peer's address is known
/// as to the [layer](crate::tenant::peer_ip). A proxy on the same machine that adds none of the
/// headers `Forwarded`, `Via`, `X-Forwarded-For`, `X-Forwarded-Host` and `X-Real-IP` must not
/// lead here.
///
/// Tenants are shown as fingerprints, unless [revealed](Self::reveal). From here on the limiter
/// counts the requests of each rule, by an atomic addition for each rule of a request.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, admin::Admin};
///
/// let limiter = RateLimiter::new(Quota::per_second(10))?;
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello\n" }))
///     .layer(RateLimitLayer::new(limiter.clone()))
///     .route_service("/admin", Admin::new(limiter));
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Admin {
    limiter: RateLimiter,
    access: Access,
    reveals: bool,
    #[cfg(feature = "watch")]
    watches: Vec<tokio::sync::watch::Receiver<WatchStatus>>,
}

impl Admin {
    /// The page of a limiter.
    pub fn new(limiter: RateLimiter) -> Self {
        limiter.count_rules();
        Self {
            limiter,
            access: Access::Loopback,
            reveals: false,
            #[cfg(feature = "watch")]
            watches: Vec::new(),
        }
    }

    /// Whether tenants are shown by their names and addresses. Not by default: names may be
    /// secrets, such as API keys.
    pub fn reveal(mut self, reveal: bool) -> Self {
        self.reveals = reveal;
        self
    }

    /// Answers every peer, under any host: the application has authenticated and authorized
    /// each request before it arrives here. The page does not.
    pub fn behind_own_authentication(mut self) -> Self {
        self.access = Access::Authenticated;
        self
    }

    /// Shows the state of a watch, too: when it last failed to load a policy, and why.
    #[cfg(feature = "watch")]
    pub fn watch(mut self, watch: &WatchHandle) -> Self {
        self.watches.push(watch.subscribe());
        self
    }

    fn sources(&self) -> Vec<SourceReport> {
        #[cfg(not(feature = "watch"))]
        return Vec::new();
        #[cfg(feature = "watch")]
        self.watches
            .iter()
            .map(|watch| {
                let status = watch.borrow();
                SourceReport {
                    is_current: status.is_current(),
                    applied: status.applied,
                    rejected: status.rejected,
                    unavailable: status.unavailable,
                    error: status.error.as_deref().map(plain),
                }
            })
            .collect()
    }

    async fn show(self, query: String, wants_json: bool) -> Response<Full<Bytes>> {
        let asked = Asked::in_query(&query);
        let mut report = Report::new(&self.limiter, self.sources(), self.reveals);
        let mut shown = Vec::new();
        if !asked.path.is_empty() {
            let explanation = self.limiter.explain(&asked.descriptor()).await;
            shown = lines(&explanation.to_string());
            report.explain(&explanation);
        }
        let page = Page { report: &report, explanation: shown };
        match wants_json {
            true => respond(StatusCode::OK, JSON, serde_json::to_vec(&report).unwrap_or_default()),
            false => respond(StatusCode::OK, HTML, page.render().unwrap_or_default()),
        }
    }

    async fn act<B>(self, body: B) -> Response<Full<Bytes>>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let limited = Box::pin(Limited::new(body, MAX_BODY));
        // Either it is too long, or its sender is gone.
        let Ok(body) = limited.collect().await.map_err(drop) else {
            return result(StatusCode::PAYLOAD_TOO_LARGE, Err("the action is too long".into()));
        };
        let action: Action = match serde_json::from_slice(&body.to_bytes()) {
            Ok(action) => action,
            Err(error) => return result(StatusCode::BAD_REQUEST, Err(plain(&error.to_string()))),
        };
        result(StatusCode::BAD_REQUEST, action.run(&self.limiter).await)
    }
}

impl<B> Service<Request<B>> for Admin
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let denied = self.access.denies(&RequestHead::new(&request));
        let admin = self.clone();
        Box::pin(async move {
            if let Some(reason) = denied {
                return Ok(respond(StatusCode::FORBIDDEN, TEXT, format!("{reason}\n")));
            }
            Ok(match *request.method() {
                Method::GET | Method::HEAD => {
                    let query = request.uri().query().unwrap_or_default().to_owned();
                    let wants_json = wants_json(request.headers(), &query);
                    drop(request);
                    admin.show(query, wants_json).await
                }
                Method::POST => admin.act(request.into_body()).await,
                _ => {
                    let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET or POST\n");
                    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
                    response
                }
            })
        })
    }
}

/// Who may see the page, and who may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Programs on this machine, by a name of this machine.
    Loopback,
    /// Callers that have passed the application's own authentication.
    Authenticated,
}

impl Access {
    /// Why the request is not answered.
    fn denies(self, request: &RequestHead<'_>) -> Option<&'static str> {
        let headers = request.headers();
        let denied = if self == Self::Loopback { denied_here(request) } else { None };
        denied.or_else(|| (request.method() == Method::POST).then(|| denies_action(headers)).flatten())
    }
}

/// A header that a page of another origin can only send if this one allows it, which it never
/// does.
const ACTS: &str = "x-tower-ratelimit";

/// What proxies add.
const FORWARDING: [HeaderName; 5] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-real-ip"),
];

fn denied_here(request: &RequestHead<'_>) -> Option<&'static str> {
    let headers = request.headers();
    let Some(peer) = peer(request) else {
        return Some("the peer's address is unknown: serve with `into_make_service_with_connect_info`");
    };
    if !peer.is_loopback() {
        return Some("only this machine may see it");
    }
    if FORWARDING.iter().any(|name| headers.contains_key(name)) {
        return Some("the request was forwarded, so it may be from anywhere");
    }
    // A name that leads to this machine may belong to someone else (DNS rebinding).
    (!is_local(headers, request.uri())).then_some("its host is no name of this machine: use `localhost`")
}

/// Whether all that says the host names this machine.
fn is_local(headers: &HeaderMap, uri: &Uri) -> bool {
    let in_headers = headers.get_all(HOST).iter().map(|host| Authority::try_from(host.as_bytes()).ok());
    let hosts: Vec<_> = in_headers.chain(uri.authority().cloned().map(Some)).collect();
    let is_local = |host: &Authority| {
        let name = host.host().trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    };
    !hosts.is_empty() && hosts.iter().all(|host| host.as_ref().is_some_and(is_local))
}

fn denies_action(headers: &HeaderMap) -> Option<&'static str> {
    if !headers.contains_key(ACTS) {
        return Some("an action needs the header `x-tower-ratelimit`");
    }
    let is_own = |site: &HeaderValue| site == "same-origin" || site == "none";
    // Where the application allows other origins everything.
    let is_foreign = headers.get_all("sec-fetch-site").iter().any(|site| !is_own(site));
    is_foreign.then_some("a page of another origin must not act")
}

fn wants_json(headers: &HeaderMap, query: &str) -> bool {
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    query.split('&').any(|pair| pair == "format=json") || accepts.starts_with("application/json")
}

/// What an action did, or why it did nothing.
fn result(failed: StatusCode, done: Result<String, String>) -> Response<Full<Bytes>> {
    match done {
        Ok(done) => respond(StatusCode::OK, JSON, json!({ "done": done }).to_string()),
        Err(error) => respond(failed, JSON, json!({ "error": error }).to_string()),
    }
}

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

const SAFE: [(HeaderName, HeaderValue); 5] = [
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff")),
    (HeaderName::from_static("x-frame-options"), HeaderValue::from_static("DENY")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

fn respond(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.extend(SAFE);
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CONTENT_SECURITY_POLICY, content_security_policy());
    response
}

#[cfg(test)]
mod tests;
