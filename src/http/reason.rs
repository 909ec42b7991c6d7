//! The reason of a rejection in words, shared by HTTP and gRPC.

use crate::decision::{RateLimited, RateLimitedKind, TierStatus};

/// A sentence for the client.
pub(super) fn detail(kind: RateLimitedKind) -> &'static str {
    match kind {
        RateLimitedKind::QuotaExceeded => "The quota is used up.",
        RateLimitedKind::QueueFull => "Too many requests are waiting already.",
        RateLimitedKind::NeverFits => "The quota can never hold this request.",
        RateLimitedKind::BackingOff => "It has failed recently.",
        RateLimitedKind::BackendUnavailable => "The rate limit could not be decided.",
        RateLimitedKind::MissingTenant => "The request does not identify its tenant.",
    }
}

/// The tiers that rejected the request, if a quota was the reason.
pub(super) fn violated_tiers(rejection: &RateLimited) -> Option<impl Iterator<Item = &TierStatus>> {
    let tiers = rejection.decision().map_or(&[][..], |decision| decision.tiers());
    is_quota(rejection.kind()).then(|| tiers.iter().filter(|tier| tier.is_violated()))
}

/// Whether a quota was the reason.
pub(super) fn is_quota(kind: RateLimitedKind) -> bool {
    matches!(kind, RateLimitedKind::QuotaExceeded | RateLimitedKind::QueueFull | RateLimitedKind::NeverFits)
}
