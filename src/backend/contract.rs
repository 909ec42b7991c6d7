//! The contract of backends: [`Backend`].

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use super::{
    at_once::AtOnce,
    cooldown::CooldownSharing,
    in_process::{InProcess, Kind},
    peek::{Reset, by_free_charge},
    receipt::{Receipt, Settlement},
    request::{Acquire, AcquireRequest, Usage},
};
use crate::{
    error::{BackendError, BackendErrorKind},
    policy::charge::Charge,
    time::Timestamp,
};

/// Decides charges: all of a request's, or none.
///
/// [`Backend::acquire`] charges every tier of every charge, at one time, and
/// only if all conform; a rejection charges nothing. A backend that can decide
/// at once answers with [`Acquire::Ready`].
///
/// `examples/custom_backend.rs` is a whole one in 80 lines, and
/// `examples/logging_backend.rs` a decorator around any other. The conformance
/// suite in `testing` checks whether a backend keeps the contract.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Decides the charges of one request. Must not block.
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire;

    /// Refunds what was charged, where that cannot admit more than the limits;
    /// else forfeits it. Best effort. Releases in-flight units as well.
    fn refund(&self, receipt: &Receipt, now: Timestamp);

    /// The backend that this one decorates. The methods below but `decides_at_once`
    /// call it, unless the decorator has its own, and do what they say where there is
    /// none.
    fn inner(&self) -> Option<&dyn Backend> {
        None
    }

    /// Releases the in-flight units of the receipt, and nothing else: the work
    /// has ended. A second release does nothing. A backend without concurrency
    /// limits has nothing to do.
    fn release(&self, receipt: &Receipt, now: Timestamp) {
        if let Some(inner) = self.inner() {
            inner.release(receipt, now);
        }
    }

    /// Adjusts what was charged to a cost that is known afterwards. Best
    /// effort; but a refund must not admit more than the limits, and must not
    /// exceed what was charged. A backend that does nothing here
    /// charges the first estimate.
    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        if let Some(inner) = self.inner() {
            inner.settle(receipt, settlement, now);
        }
    }

    /// Whether [`acquire`](Self::acquire) decides these charges without I/O, so that
    /// its answer is [`Acquire::Ready`]. Charges nothing. By default `false`, also of
    /// a decorator, whose own `acquire` may wait.
    fn decides_at_once(&self, charges: &[Charge<'_>]) -> bool {
        let _ = charges;
        false
    }

    /// The answer that [`acquire`](Self::acquire) would give at once, charging and
    /// counting nothing. By default it charges a cost of 0, and compares the units
    /// that each tier then has left with the cost, so `retry_after` may be later
    /// than need be. Without tier states in its outcomes, a backend has to answer
    /// itself, or the default is an error of the kind `Unsupported`.
    fn peek(&self, request: &AcquireRequest<'_>) -> Acquire {
        match self.inner() {
            Some(inner) => inner.peek(request),
            None => by_free_charge(request, |free| self.acquire(free)),
        }
    }

    /// Forgets what the keys of these charges have used: each tier is full again.
    /// In-flight units stay, and so does what a key shares with others, such as an
    /// overflow counter. By default an error of the kind `Unsupported`.
    fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Reset {
        if let Some(inner) = self.inner() {
            return inner.reset(charges, now);
        }
        let reason = "the backend cannot forget what a key has used";
        Reset::Ready(Err(BackendError::new(BackendErrorKind::Unsupported, reason)))
    }

    /// How it shares cooldowns with other instances; `None` if it does not.
    fn cooldown_sharing(&self) -> Option<&dyn CooldownSharing> {
        self.inner()?.cooldown_sharing()
    }

    /// Whether it honors [`Rule::consistency`](crate::Rule::consistency). The
    /// limiter logs once if a policy asks for a level that the backend ignores.
    fn honors_consistency(&self) -> bool {
        self.inner().is_some_and(Backend::honors_consistency)
    }

    /// How many instances decide on the same counters, this one included, as far as it
    /// knows. Rules that are leased, fall back to the local limiter and set
    /// no [`local_share`](crate::Rule::local_share) divide their limits by it there.
    fn instances(&self) -> u64 {
        self.inner().map_or(1, Backend::instances)
    }

    /// Gives back what it has reserved ahead, and reports what it has not
    /// reported yet: this instance is about to stop. By default there is nothing
    /// to do. Later requests are decided as before.
    fn drain(&self, now: Timestamp) -> Draining {
        match self.inner() {
            Some(inner) => inner.drain(now),
            None => Box::pin(std::future::ready(())),
        }
    }

    /// What it keeps in this process.
    fn usage(&self) -> Usage {
        self.inner().map_or_else(Usage::default, Backend::usage)
    }

    /// The engine that decides in this process, which the limiter then calls
    /// directly. Only for backends of this crate and for pointers to them. A
    /// decorator must not forward it, or the limiter bypasses the decorator.
    #[doc(hidden)]
    fn in_process(&self) -> Option<InProcess> {
        None
    }

    /// Makes charges that need no call, which the limiter then does not ask
    /// [`acquire`](Self::acquire) for. As for [`in_process`](Self::in_process), only for
    /// backends of this crate.
    #[doc(hidden)]
    fn at_once(&self) -> Option<AtOnce> {
        None
    }
}

/// The future of [`Backend::drain`].
pub type Draining = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Implements [`Backend`] by the backend that an expression leads to.
macro_rules! forward_backend {
    ($self:ident => $inner:expr) => {
        fn acquire(&$self, request: &$crate::backend::AcquireRequest<'_>) -> $crate::backend::Acquire {
            $inner.acquire(request)
        }

        fn refund(&$self, receipt: &$crate::backend::Receipt, now: $crate::time::Timestamp) {
            $inner.refund(receipt, now);
        }

        fn release(&$self, receipt: &$crate::backend::Receipt, now: $crate::time::Timestamp) {
            $inner.release(receipt, now);
        }

        fn settle(
            &$self,
            receipt: &$crate::backend::Receipt,
            settlement: $crate::backend::Settlement,
            now: $crate::time::Timestamp,
        ) {
            $inner.settle(receipt, settlement, now);
        }

        fn decides_at_once(&$self, charges: &[$crate::backend::Charge<'_>]) -> bool {
            $inner.decides_at_once(charges)
        }

        fn peek(&$self, request: &$crate::backend::AcquireRequest<'_>) -> $crate::backend::Acquire {
            $inner.peek(request)
        }

        fn reset(
            &$self,
            charges: &[$crate::backend::Charge<'_>],
            now: $crate::time::Timestamp,
        ) -> $crate::backend::Reset {
            $inner.reset(charges, now)
        }

        fn cooldown_sharing(&$self) -> Option<&dyn $crate::backend::CooldownSharing> {
            $inner.cooldown_sharing()
        }

        fn honors_consistency(&$self) -> bool {
            $inner.honors_consistency()
        }

        fn instances(&$self) -> u64 {
            $inner.instances()
        }

        fn drain(&$self, now: $crate::time::Timestamp) -> $crate::backend::Draining {
            $inner.drain(now)
        }

        fn usage(&$self) -> $crate::backend::Usage {
            $inner.usage()
        }
    };
}

pub(super) use forward_backend;

impl InProcess {
    pub(crate) fn as_backend(&self) -> &dyn Backend {
        match &self.0 {
            Kind::Full(engine) => &**engine,
            Kind::Shares(engine) => &**engine,
        }
    }
}

impl<B: Backend + ?Sized> Backend for Arc<B> {
    forward_backend!(self => (**self));

    fn in_process(&self) -> Option<InProcess> {
        (**self).in_process()
    }

    fn at_once(&self) -> Option<AtOnce> {
        (**self).at_once()
    }
}

impl<B: Backend + ?Sized> Backend for Box<B> {
    forward_backend!(self => (**self));

    fn in_process(&self) -> Option<InProcess> {
        (**self).in_process()
    }

    fn at_once(&self) -> Option<AtOnce> {
        (**self).at_once()
    }
}
