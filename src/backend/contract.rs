//! The contract of backends: [`Backend`].

use std::{fmt, sync::Arc};

use super::{
    cooldown::CooldownSharing,
    in_process::{InProcess, Kind},
    receipt::{Receipt, Settlement},
    request::{Acquire, AcquireRequest, Usage},
};
use crate::time::Timestamp;

/// Decides charges: all of a request's, or none.
///
/// [`Backend::acquire`] charges every tier of every charge, at one time, and
/// only if all conform; a rejection charges nothing. A backend that can decide
/// at once answers with [`Acquire::Ready`].
///
/// `examples/custom_backend.rs` is a whole one in under 100 lines, and
/// `examples/logging_backend.rs` a decorator around any other. The conformance
/// suite in `testing` checks whether a backend keeps the contract.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Decides the charges of one request. Must not block.
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire;

    /// Refunds what was charged, where that cannot admit more than the limits;
    /// else forfeits it. Best effort. Releases in-flight units as well.
    fn refund(&self, receipt: &Receipt, now: Timestamp);

    /// Releases the in-flight units of the receipt, and nothing else: the work
    /// has ended. A second release does nothing. A backend without concurrency
    /// limits has nothing to do.
    fn release(&self, receipt: &Receipt, now: Timestamp) {
        let _ = (receipt, now);
    }

    /// Adjusts what was charged to a cost that is known afterwards. Best
    /// effort; but a refund must not admit more than the limits, and must not
    /// exceed what was charged. A backend that does nothing here
    /// charges the first estimate.
    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        let _ = (receipt, settlement, now);
    }

    /// How it shares cooldowns with other instances; `None` if it does not.
    fn cooldown_sharing(&self) -> Option<&dyn CooldownSharing> {
        None
    }

    /// What it keeps in this process.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    /// The engine that decides in this process, which the limiter then calls
    /// directly. Only for backends of this crate and for pointers to them. A
    /// decorator must not forward it, or the limiter bypasses the decorator.
    #[doc(hidden)]
    fn in_process(&self) -> Option<InProcess> {
        None
    }
}

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

        fn cooldown_sharing(&$self) -> Option<&dyn $crate::backend::CooldownSharing> {
            $inner.cooldown_sharing()
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
}

impl<B: Backend + ?Sized> Backend for Box<B> {
    forward_backend!(self => (**self));

    fn in_process(&self) -> Option<InProcess> {
        (**self).in_process()
    }
}
