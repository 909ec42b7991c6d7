//! The part of an HTTP request that describes it: [`RequestHead`].
//!
//! It borrows, so that a description copies nothing.

use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
    request::Parts,
};

/// A request without its body, as extractors see it.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::RequestHead;
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

    /// The head whose parts these are.
    #[must_use]
    pub fn of_parts(parts: &'r Parts) -> Self {
        let Parts { method, uri, headers, extensions, version, .. } = parts;
        Self { method, uri, headers, extensions, version: *version }
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

    /// The same head with the headers and extensions that were taken from it.
    pub(crate) fn with_taken<'a>(self, headers: &'a HeaderMap, extensions: &'a Extensions) -> RequestHead<'a>
    where
        'r: 'a,
    {
        RequestHead { headers, extensions, ..self }
    }

    /// Whether a response that is sent before the request's body was read leaves
    /// the connection unusable. That is so over HTTP/1, where a server reads on for
    /// at most some kilobytes.
    pub(crate) fn ends_connection_unread(&self) -> bool {
        const SHORT: u64 = 8_192;
        let length = || str::from_utf8(self.single_header(&CONTENT_LENGTH)?).ok()?.parse::<u64>().ok();
        self.version <= Version::HTTP_11
            && (self.headers.contains_key(TRANSFER_ENCODING) || length().is_some_and(|length| length > SHORT))
    }

    /// The trimmed value of a header that was sent once and is not empty.
    pub(super) fn single_header(&self, name: &HeaderName) -> Option<&'r [u8]> {
        let value = self.single_value(name)?.as_bytes().trim_ascii();
        (!value.is_empty()).then_some(value)
    }

    /// The value of a header that was sent once.
    pub(super) fn single_value(&self, name: &HeaderName) -> Option<&'r HeaderValue> {
        let headers = self.headers;
        // Not looked up: that takes 236 instructions for `x-tenant`, and to compare six names 185.
        let (_, value) = headers.iter().find(|(own, _)| *own == name)?;
        let is_repeated = headers.len() > headers.keys_len() && headers.get_all(name).iter().nth(1).is_some();
        (!is_repeated).then_some(value)
    }
}

/// The header of this name. Extractors are made when a program starts, and one
/// with an invalid name would never find anything.
#[track_caller]
pub(super) fn header_name(made: &str, name: impl TryInto<HeaderName>) -> HeaderName {
    // Not in a closure, whose panic would name this line.
    let Ok(name) = name.try_into() else { panic!("{made}: the name is not a valid header name") };
    name
}

#[cfg(test)]
mod tests;
