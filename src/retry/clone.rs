//! How to copy a request for another attempt.

use http::Request;

/// Copies a request for another attempt: [`Cloned`], or a function.
///
/// See [`Retry::clone_with`](super::Retry::clone_with).
pub trait CloneRequest<Req> {
    /// A copy to send in place of the original. `None` for a request that must
    /// be sent only once.
    fn clone_request(&self, request: &Req) -> Option<Req>;
}

/// Clones the whole request with its body and extensions, for bodies that are
/// cheap to clone, such as `Full<Bytes>`.
///
/// ```
/// use tower_ratelimit::retry::{CloneRequest, Cloned};
///
/// let request = http::Request::put("/").body("text").unwrap();
/// assert_eq!(Cloned.clone_request(&request).unwrap().body(), &"text");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Cloned;

impl<B: Clone> CloneRequest<Request<B>> for Cloned {
    fn clone_request(&self, request: &Request<B>) -> Option<Request<B>> {
        Some(request.clone())
    }
}

impl<Req, F> CloneRequest<Req> for F
where
    F: Fn(&Req) -> Option<Req>,
{
    fn clone_request(&self, request: &Req) -> Option<Req> {
        self(request)
    }
}

/// A request without its body: method, URI, version, headers and extensions.
///
/// ```
/// use tower_ratelimit::retry::clone_head;
///
/// let request = http::Request::get("/").header("accept", "*/*").body("any").unwrap();
/// assert_eq!(clone_head(&request).headers(), request.headers());
/// ```
pub fn clone_head<B>(request: &Request<B>) -> Request<()> {
    let mut head = Request::new(());
    head.method_mut().clone_from(request.method());
    head.uri_mut().clone_from(request.uri());
    *head.version_mut() = request.version();
    head.headers_mut().clone_from(request.headers());
    head.extensions_mut().clone_from(request.extensions());
    head
}
