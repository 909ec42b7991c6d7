//! The protocol of a request, as far as its rejection depends on it.

use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};

use crate::descriptor::grpc;

/// The protocol in which a rejection has to be answered.
///
/// ```
/// use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
/// use tower_ratelimit::middleware::Protocol;
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
        /// The request's content type, which the response repeats.
        content_type: HeaderValue,
    },
}

impl Protocol {
    /// Detects the protocol by content type: `application/grpc`,
    /// `application/grpc-web` or `application/grpc-web-text`, with an optional
    /// suffix (`+proto`) and parameters.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        match headers.get(CONTENT_TYPE).filter(|content_type| grpc::is_grpc(content_type.as_bytes())) {
            Some(content_type) => Self::Grpc { content_type: content_type.clone() },
            None => Self::Other,
        }
    }

    /// Whether bodies frame messages as gRPC does. gRPC-Web may encode them.
    pub(crate) fn frames_messages(&self) -> bool {
        matches!(self, Self::Grpc { content_type } if !grpc::is_web(content_type))
    }
}
