//! What keeps an upgraded connection in flight: [`ConnectionPermit`].
//!
//! A layer sees the response that upgrades a connection, but not the end of the
//! connection: the upgraded stream goes from the server to the handler. So the
//! handler keeps the permit. The invariant: units are released exactly once, when
//! the response has ended and the last clone of the permit is dropped.

use std::sync::Arc;

use crate::limiter::Lease;

/// Keeps a connection in flight after its upgrade, such as a WebSocket: a
/// [concurrency limit](crate::Quota::concurrent) counts it until the last clone is
/// dropped.
///
/// The layer puts it into the extensions of requests that ask for an upgrade (a
/// header `Upgrade`, or `CONNECT`) and that a concurrency limit counts. **Move it
/// into the task of the connection.** Otherwise the limit counts the request only
/// until the response `101 Switching Protocols` is sent, and any number of
/// connections stay open. The layer logs that once for each rule.
///
/// It is missing if no concurrency limit applied: ask for an `Option`.
///
/// ```
/// use axum::{Extension, Router, body::Body, extract::Request, http::StatusCode, response::Response, routing::get};
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, middleware::ConnectionPermit};
///
/// async fn chat(permit: Option<Extension<ConnectionPermit>>, mut request: Request) -> Response {
///     tokio::spawn(async move {
///         // Counted until this task ends.
///         let _permit = permit;
///         let Ok(stream) = hyper::upgrade::on(&mut request).await else { return };
///         // ...
///         # drop(stream);
///     });
///     let mut response = Response::new(Body::empty());
///     *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
///     response
/// }
///
/// // Two connections at once for each tenant.
/// let limiter = RateLimiter::new(Quota::concurrent(2))?;
/// let app: Router = Router::new().route("/chat", get(chat)).layer(RateLimitLayer::new(limiter));
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "the connection is in flight until this is dropped"]
pub struct ConnectionPermit {
    own: Arc<ReleaseOnDrop>,
    /// That of an outer layer.
    _outer: Option<Arc<Self>>,
}

#[derive(Debug)]
struct ReleaseOnDrop(Arc<Lease>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl ConnectionPermit {
    pub(super) fn new(lease: &Arc<Lease>) -> Self {
        Self { own: Arc::new(ReleaseOnDrop(Arc::clone(lease))), _outer: None }
    }

    /// With the permit of an outer layer.
    pub(super) fn inside(self, outer: Option<Self>) -> Self {
        Self { _outer: outer.map(Arc::new), ..self }
    }

    /// Whether another clone exists: the handler has kept one.
    pub(super) fn is_kept(&self) -> bool {
        Arc::strong_count(&self.own) > 1
    }
}
