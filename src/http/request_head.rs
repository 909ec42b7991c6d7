//! The part of an HTTP request that describes it: [`RequestHead`].
//!
//! It borrows, so that a description copies nothing.

use http::{Extensions, HeaderMap, HeaderName, Method, Request, Uri};

/// A request without its body, as extractors see it.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::http::RequestHead;
///
/// let request = Request::get("https://api.example/v1?page=2").body("any body").unwrap();
/// let head = RequestHead::new(&request);
/// assert_eq!(head.method(), "GET");
/// assert_eq!(head.uri().path(), "/v1");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
}

impl<'r> RequestHead<'r> {
    /// The head of `request`.
    #[must_use]
    pub fn new<B>(request: &'r Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// The request's method.
    #[must_use]
    pub fn method(&self) -> &'r Method {
        self.method
    }

    /// The request's URI, as this layer sees it.
    #[must_use]
    pub fn uri(&self) -> &'r Uri {
        self.uri
    }

    /// The request's headers.
    #[must_use]
    pub fn headers(&self) -> &'r HeaderMap {
        self.headers
    }

    /// The extensions, which outer layers have set.
    #[must_use]
    pub fn extensions(&self) -> &'r Extensions {
        self.extensions
    }
    /// The value of a header that was sent once and is not empty.
    pub(super) fn single_header(&self, name: &HeaderName) -> Option<&'r [u8]> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?.as_bytes().trim_ascii();
        (!value.is_empty() && values.next().is_none()).then_some(value)
    }
}
