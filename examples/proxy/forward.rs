//! The proxy: forwards requests to the upstream and streams the responses.

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, StatusCode, Uri, Version,
        header::{CONNECTION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE},
        uri::{Authority, Scheme},
    },
    response::{IntoResponse, Response},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower_ratelimit::{Headers, RateLimitLayer, RateLimiter, tenant};

/// `/pass/...` forwards requests and responses unchanged: a 429 keeps the
/// upstream's `Retry-After` and rate limit headers. `/guard/...` asks `limiter`
/// first, so that the upstream never has to reject a request.
pub(crate) fn proxy(upstream: Authority, limiter: RateLimiter) -> Router {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let pass = Router::new().fallback(forward).with_state(Upstream { authority: upstream, client });
    // The same tenants that the upstream counts by.
    let limit = RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")).headers(Headers::ALL);
    // `nest_service` strips the prefix and leaves the upstream's path.
    Router::new().nest_service("/guard", pass.clone().layer(limit)).nest_service("/pass", pass)
}

#[derive(Clone)]
struct Upstream {
    authority: Authority,
    client: Client<HttpConnector, Body>,
}

/// Streams both bodies: each chunk is forwarded as it arrives.
async fn forward(State(upstream): State<Upstream>, mut request: Request) -> Response {
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(upstream.authority);
    let Ok(uri) = Uri::from_parts(parts) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_11;
    // The client sets the upstream's host.
    request.headers_mut().remove(HOST);
    remove_hop_by_hop(request.headers_mut());
    match upstream.client.request(request).await {
        Ok(mut response) => {
            remove_hop_by_hop(response.headers_mut());
            response.map(Body::new)
        }
        Err(error) => {
            eprintln!("upstream request failed, answering 502: {error:?}");
            StatusCode::BAD_GATEWAY.into_response()
        }
    }
}

/// Removes the hop-by-hop headers (RFC 9110, section 7.6.1), including those that
/// `Connection` names.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let always = [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
    for name in named.into_iter().chain(always) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}
