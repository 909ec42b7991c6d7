//! gRPC status codes of rejections.

use crate::decision::RateLimitedKind;

/// A gRPC status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    ResourceExhausted = 8,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Code {
    pub(super) fn of(kind: RateLimitedKind) -> Self {
        match kind {
            RateLimitedKind::QuotaExceeded | RateLimitedKind::QueueFull | RateLimitedKind::NeverFits => {
                Self::ResourceExhausted
            }
            RateLimitedKind::BackendUnavailable | RateLimitedKind::BackingOff => Self::Unavailable,
            RateLimitedKind::MissingTenant => Self::Unauthenticated,
        }
    }
}
