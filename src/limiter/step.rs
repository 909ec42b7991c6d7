//! The steps of a request that cannot be decided at once, and the events that
//! end them. Plain data: [`admit`](super::decide) takes an event and
//! returns the next step, and [`drive`](super::drive) awaits a step's event.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::{lease::Lease, reservation::Reservation, state::RateLimiter};
use crate::{
    backend::{Outcome, OwnedCharge},
    error::BackendError,
    fingerprint::Fingerprint,
    time::Timestamp,
};

/// What a request does next.
pub(super) enum Step {
    /// The decision holds. `None`: the request was rejected, or has nothing to
    /// keep.
    Done(Option<Reservation>),
    /// Admitted: sleep until the reserved slot.
    Sleep(Reservation),
    /// A key is cooling down: sleep until that is over, then start again.
    CoolDown(Timestamp),
    /// Wait in the queue of a key until called, then start again.
    Queue(Box<Queue>),
    /// Wait for the backend's reply.
    Ask(Box<Ask>),
    /// Admitted: wait for the backend's replies for shadow rules.
    AskShadows(Box<ShadowReplies>),
}

pub(super) struct Queue {
    pub(super) key: Fingerprint,
    /// Why the request queues, and why it is rejected if it times out.
    pub(super) outcome: Outcome,
    /// For how long the first request of the queue need not be decided again.
    pub(super) pause: Option<Duration>,
}

pub(super) struct Ask {
    pub(super) reply: BoxFuture<'static, Result<Outcome, BackendError>>,
    /// When the backend was asked.
    pub(super) now: Timestamp,
    /// Nanoseconds for which it waited when the backend was asked.
    pub(super) waited: u64,
    /// How long to wait for the reply. Without it, the backend's own deadline is
    /// the bound.
    pub(super) reply_timeout: Option<Duration>,
}

pub(super) struct ShadowReplies {
    /// The replies that have not arrived yet, each with its charge.
    pub(super) replies: Vec<(OwnedCharge, BoxFuture<'static, Result<Outcome, BackendError>>)>,
    /// When the backend was asked.
    pub(super) now: Timestamp,
    pub(super) leases: Vec<Lease>,
    /// The step that follows.
    pub(super) then: Step,
}

/// Why a request is decided.
pub(super) enum Event {
    /// It is new, or starts again: a cooldown is over, or its queue called it.
    Arrived,
    /// The backend replied.
    Replied(Result<Outcome, BackendError>),
    /// It may not wait in its queue any longer.
    TimedOut(Outcome),
}

impl Step {
    /// Whether the request counts as a waiter. A request that only awaits the
    /// replies for shadow rules does not.
    pub(super) fn waits(&self) -> bool {
        match self {
            Self::Done(_) => false,
            Self::AskShadows(replies) => replies.then.waits(),
            _ => true,
        }
    }

    /// Whether the enforced rules have decided.
    pub(super) fn is_decided(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Sleep(_) | Self::AskShadows(_))
    }

    /// Keeps these leases of shadow rules for the request, which was admitted.
    pub(super) fn keep(mut self, limiter: &RateLimiter, shadows: Vec<Lease>) -> Self {
        if shadows.is_empty() {
            return self;
        }
        match &mut self {
            Self::Done(Some(reservation)) | Self::Sleep(reservation) => reservation.keep(shadows),
            Self::Done(none) => none.insert(Reservation::of_shadows(limiter)).keep(shadows),
            _ => {}
        }
        self
    }
}

/// Whether a wait counts from the reply's arrival instead of from the request.
/// It does for a backend with its own clock, since the limiter does not know
/// when on its own clock that backend decided. It also does after a failure,
/// since the fallback limiter decides after the reply.
pub(super) fn counts_from_arrival(result: &Result<Outcome, BackendError>) -> bool {
    result.as_ref().map_or(true, |outcome| outcome.decided_at.is_some())
}
