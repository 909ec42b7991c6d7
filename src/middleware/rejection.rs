//! What a hook of [`on_rejected`](super::RateLimitLayer::on_rejected) sees and
//! returns: [`Rejection`], and a response with a body of any type.
//!
//! The hook writes the response, and the layer adds the standard headers that
//! the hook has left out. The invariant: a header that the hook has set stays.

use std::{
    convert::identity,
    error::Error,
    fmt,
    pin::Pin,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::{Extensions, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use crate::{
    decision::{RateLimited, RateLimitedKind},
    headers::Headers,
    http::{RequestHead, problem},
};

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The head of a request that is not HTTP's.
static NO_HEAD: LazyLock<Request<()>> = LazyLock::new(|| Request::new(()));

/// A rejected request, as a hook of
/// [`on_rejected`](crate::RateLimitLayer::on_rejected) sees it.
///
/// ```
/// use axum::{Json, response::IntoResponse};
/// use http::StatusCode;
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, middleware::Rejection};
///
/// let limiter = RateLimiter::new(Quota::per_minute(60))?;
/// // The layer adds `Retry-After` and the rate limit headers.
/// let layer = RateLimitLayer::new(limiter).on_rejected(|rejection: &Rejection<'_>| {
///     let path = rejection.head().uri().path().to_owned();
///     (StatusCode::TOO_MANY_REQUESTS, Json([path, rejection.error().to_string()])).into_response()
/// });
/// # let _ = layer;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    error: &'a RateLimited,
    head: Option<RequestHead<'a>>,
    headers: &'a Headers,
}

impl<'a> Rejection<'a> {
    /// The reason.
    #[must_use]
    pub fn error(&self) -> &'a RateLimited {
        self.error
    }

    /// Why the request was rejected: see [`RateLimited::kind`].
    #[must_use]
    pub fn kind(&self) -> RateLimitedKind {
        self.error.kind()
    }

    /// When the same request could pass: see [`RateLimited::retry_after`].
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.error.retry_after()
    }

    /// The method, URI, headers and extensions of the request. An empty head if
    /// a custom [`Describe`](super::Describe) gives none.
    #[must_use]
    pub fn head(&self) -> RequestHead<'a> {
        self.head.unwrap_or_else(|| RequestHead::new(&*NO_HEAD))
    }

    /// The response that the layer sends without a hook, to change a part of it.
    #[must_use]
    pub fn to_response(&self) -> Response<Full<Bytes>> {
        problem::rejection(self.error.clone(), self.headers, Extensions::new(), identity)
    }
}

/// A hook of [`on_rejected`](super::RateLimitLayer::on_rejected).
#[derive(Clone)]
pub(super) struct Hook(Arc<Respond>);

type Respond = dyn Fn(&Rejection<'_>) -> Response<HookBody> + Send + Sync;

impl Hook {
    pub(super) fn new<F, B>(respond: F) -> Self
    where
        F: Fn(&Rejection<'_>) -> Response<B> + Send + Sync + 'static,
        B: Body<Error: Into<BoxError>> + Send + 'static,
    {
        Self(Arc::new(move |rejection| respond(rejection).map(HookBody::new)))
    }

    /// The hook's response, with the standard headers that it has left out. The
    /// rejection is in its extensions.
    pub(super) fn respond(
        &self,
        error: RateLimited,
        head: Option<RequestHead<'_>>,
        headers: &Headers,
    ) -> Response<HookBody> {
        let mut response = (self.0)(&Rejection { error: &error, head, headers });
        let map = response.headers_mut();
        for (name, value) in &problem::headers(&error, headers) {
            // A map with thousands of entries may be full. It then gets none.
            if let Ok(entry) = map.try_entry(name) {
                entry.or_insert_with(|| value.clone());
            }
        }
        response.extensions_mut().insert(error);
        response
    }
}

/// The body of a hook's response, of any type.
///
/// The mutex only makes it `Sync`; it is never contended.
pub(super) struct HookBody(Mutex<UnsyncBoxBody<Bytes, BoxError>>);

impl HookBody {
    fn new<B>(body: B) -> Self
    where
        B: Body<Error: Into<BoxError>> + Send + 'static,
    {
        let to_bytes = |frame: Frame<B::Data>| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
        Self(Mutex::new(body.map_frame(to_bytes).map_err(Into::into).boxed_unsync()))
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(self.0.get_mut().unwrap_or_else(PoisonError::into_inner)).poll_frame(cx)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}

impl fmt::Debug for HookBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookBody")
    }
}
