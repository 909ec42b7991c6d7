use http::{HeaderMap, HeaderValue};

use crate::descriptor::grpc;

/// What a request speaks, as far as its rejection has to speak it too.
///
/// ```
/// use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
/// use tower_ratelimit::http::Protocol;
///
/// let mut headers = HeaderMap::new();
/// headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
/// assert!(matches!(Protocol::of(&headers), Protocol::Grpc { .. }));
///
/// headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpcfoo"));
/// assert_eq!(Protocol::of(&headers), Protocol::Other);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Plain HTTP, or anything else.
    #[default]
    Other,
    /// gRPC or gRPC-Web.
    Grpc {
        /// The request's own, which the answer takes over.
        content_type: HeaderValue,
    },
}

impl Protocol {
    /// By the content type: `application/grpc`, `application/grpc-web` or
    /// `application/grpc-web-text`, alone or with a suffix (`+proto`) and
    /// parameters.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        match grpc::content_type(headers) {
            Some(content_type) => Self::Grpc { content_type: content_type.clone() },
            None => Self::Other,
        }
    }

    /// Whether messages stand in bodies as gRPC has them, rather than as
    /// gRPC-Web may.
    pub(crate) fn frames_messages(&self) -> bool {
        matches!(self, Self::Grpc { content_type } if !grpc::is_web(content_type))
    }
}
