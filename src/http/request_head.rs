//! The part of an HTTP request that describes it: [`RequestHead`].
//!
//! It borrows, so that a description copies nothing.

use http::{
    Extensions, HeaderMap, HeaderName, Method, Request, Uri, Version,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};

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
    version: Version,
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
            version: request.version(),
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

    /// The same head with the extensions that were taken from it, if they were.
    pub(crate) fn with_extensions<'a>(self, taken: Option<&'a Extensions>) -> RequestHead<'a>
    where
        'r: 'a,
    {
        RequestHead { extensions: taken.unwrap_or(self.extensions), ..self }
    }

    /// Whether a response that is sent before the request's body was read leaves
    /// the connection unusable. That is so over HTTP/1, where a server reads on for
    /// at most some kilobytes.
    pub(crate) fn ends_connection_unread(&self) -> bool {
        const SHORT: u64 = 8_192;
        if self.version > Version::HTTP_11 {
            return false;
        }
        let length = self.single_header(&CONTENT_LENGTH).and_then(|value| str::from_utf8(value).ok()?.parse().ok());
        self.headers.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length: u64| length > SHORT)
    }

    /// The value of a header that was sent once and is not empty.
    #[inline]
    pub(super) fn single_header(&self, name: &HeaderName) -> Option<&'r [u8]> {
        let value = trimmed(self.headers.get(name)?.as_bytes());
        // A second look-up only where any header was sent twice.
        let is_repeated = self.headers.len() > self.headers.keys_len() && is_repeated(self.headers, name);
        (!value.is_empty() && !is_repeated).then_some(value)
    }
}

/// Without white space around it, which hardly any value has: servers remove it.
#[inline]
fn trimmed(value: &[u8]) -> &[u8] {
    match value {
        [first, .., last] if *first > b' ' && *last > b' ' => value,
        _ => value.trim_ascii(),
    }
}

#[cold]
fn is_repeated(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(name).iter().nth(1).is_some()
}

/// The header of this name. Extractors are made when a program starts, and one
/// with an invalid name would never find anything.
#[track_caller]
pub(super) fn header_name(made: &str, name: impl TryInto<HeaderName>) -> HeaderName {
    // Not in a closure, whose panic would name this line.
    let Ok(name) = name.try_into() else { panic!("{made}: the name is not a valid header name") };
    name
}
