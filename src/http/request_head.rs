//! The part of an HTTP request that describes it: [`RequestHead`].
//!
//! It borrows, so that a description copies nothing.

use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING},
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

    /// The fields that describe the request's body.
    pub(crate) fn body_fields(&self) -> BodyFields<'r> {
        let headers = self.headers;
        if headers.len() > FEW {
            let lengths = headers.get_all(CONTENT_LENGTH).iter().fold(Length::None, Length::and);
            let is_encoded = headers.contains_key(TRANSFER_ENCODING);
            return BodyFields { content_type: headers.get(CONTENT_TYPE), length: lengths, is_encoded };
        }
        let mut fields = BodyFields { content_type: None, length: Length::None, is_encoded: false };
        for (name, value) in headers {
            if *name == CONTENT_TYPE {
                fields.content_type = fields.content_type.or(Some(value));
            } else if *name == CONTENT_LENGTH {
                fields.length = fields.length.and(value);
            } else if *name == TRANSFER_ENCODING {
                fields.is_encoded = true;
            }
        }
        fields
    }

    /// Whether a response that is sent before the request's body was read leaves
    /// the connection unusable. That is so over HTTP/1, where a server reads on for
    /// at most some kilobytes.
    pub(crate) fn ends_connection_unread(&self, body: &BodyFields<'_>) -> bool {
        const SHORT: u64 = 8_192;
        self.version <= Version::HTTP_11 && (body.is_encoded || body.length.is_above(SHORT))
    }

    /// The value of a header that was sent once and is not empty.
    #[inline]
    pub(super) fn single_header(&self, name: &HeaderName) -> Option<&'r [u8]> {
        let headers = self.headers;
        let value = match headers.len() {
            ..=FEW => headers.iter().find(|(own, _)| *own == name)?.1,
            _ => headers.get(name)?,
        };
        let value = trimmed(value.as_bytes());
        // A second look-up only where any header was sent twice.
        let is_repeated = headers.len() > headers.keys_len() && is_repeated(headers, name);
        (!value.is_empty() && !is_repeated).then_some(value)
    }
}

/// Up to so many fields, names are compared one by one. That is faster than a look-up,
/// for which the map hashes the name byte by byte.
const FEW: usize = 12;

/// The fields of a request that describe its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyFields<'r> {
    /// The first one.
    pub(crate) content_type: Option<&'r HeaderValue>,
    length: Length<'r>,
    /// Whether it has a `Transfer-Encoding`.
    is_encoded: bool,
}

/// The `Content-Length`.
#[derive(Clone, Copy, Debug)]
enum Length<'r> {
    None,
    Once(&'r HeaderValue),
    Repeated,
}

impl<'r> Length<'r> {
    fn and(self, value: &'r HeaderValue) -> Self {
        match self {
            Self::None => Self::Once(value),
            _ => Self::Repeated,
        }
    }

    fn is_above(self, bytes: u64) -> bool {
        let Self::Once(length) = self else { return false };
        let length = str::from_utf8(length.as_bytes().trim_ascii()).ok().and_then(|length| length.parse().ok());
        length.is_some_and(|length: u64| length > bytes)
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

#[cfg(test)]
mod tests;
