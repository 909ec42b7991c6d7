//! What operators see of a rule: what is counted, and how often it is logged.

#[cfg(feature = "watch")]
mod reloads;
#[cfg(feature = "redis")]
mod store;

#[cfg(feature = "watch")]
pub(crate) use self::reloads::Reload;
#[cfg(feature = "redis")]
pub(crate) use self::store::{StoreReport, TIMES_CALLS, is_subscribed, shares_cooldowns};

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Allowed,
    Delayed,
    Rejected,
    ShadowRejected,
    FailedOpen,
    FailedClosed,
    FailedLocal,
}

impl Event {
    pub(crate) const COUNT: usize = 7;

    #[cfg(any(feature = "metrics", feature = "tracing"))]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Rejected => "rejected",
            Self::ShadowRejected => "shadow_rejected",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::FailedLocal => "failed_local",
        }
    }
}

/// Something is wrong with where a share comes from. Whoever says so sees to
/// it that it is said once.
pub(crate) fn share_source(source: &str, trouble: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(source, trouble, "a share's source is in trouble");
    #[cfg(not(feature = "tracing"))]
    let _ = (source, trouble);
}

#[cfg(feature = "metrics")]
pub(crate) use self::meters::Meters;

#[cfg(feature = "metrics")]
mod meters {
    use std::{fmt, sync::OnceLock};

    use super::Event;

    /// A rule's counters. Made at its first event, so that a recorder may be
    /// installed after the policy was built; kept, so that no label is built
    /// twice.
    #[derive(Default)]
    pub(crate) struct Meters([OnceLock<metrics::Counter>; Event::COUNT]);

    impl Meters {
        pub(crate) fn count(&self, rule: &'static str, event: Event) {
            let counter = self.0[event as usize].get_or_init(
                || metrics::counter!("rate_limiting.requests", "rule" => rule, "result" => event.as_str()),
            );
            counter.increment(1);
        }
    }

    impl fmt::Debug for Meters {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Meters")
        }
    }
}

#[cfg(feature = "tracing")]
pub(crate) use self::log_gate::LogGate;

#[cfg(feature = "tracing")]
mod log_gate {
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::time::Timestamp;

    /// Lets one event a second through and counts the others: an attack must
    /// not fill the disk.
    #[derive(Debug, Default)]
    pub(crate) struct LogGate {
        next: AtomicU64,
        suppressed: AtomicU64,
    }

    const EVERY: u64 = 1_000_000_000;

    impl LogGate {
        /// How many events this one stands for besides itself; `None` where it
        /// is held back.
        pub(crate) fn pass(&self, now: Timestamp) -> Option<u64> {
            let (now, next) = (now.as_nanos(), self.next.load(Ordering::Relaxed));
            // A clock that went back far must not silence the log.
            let due = now >= next || next - now > EVERY;
            let swap = |next| {
                self.next.compare_exchange(next, now.saturating_add(EVERY), Ordering::Relaxed, Ordering::Relaxed)
            };
            if due && swap(next).is_ok() {
                return Some(self.suppressed.swap(0, Ordering::Relaxed));
            }
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn one_a_second_passes_and_stands_for_the_others() {
            let gate = LogGate::default();
            assert_eq!(gate.pass(Timestamp::from_secs(10)), Some(0));
            assert_eq!(gate.pass(Timestamp::from_secs(10)), None);
            assert_eq!(gate.pass(Timestamp::from_nanos(10_900_000_000)), None);
            assert_eq!(gate.pass(Timestamp::from_secs(11)), Some(2));
            assert_eq!(gate.pass(Timestamp::from_secs(5)), Some(0), "a clock that went back");
        }
    }
}
