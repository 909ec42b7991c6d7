//! Mistakes in how a limiter is set up: [`Mistake`], each reported once.
//!
//! A mistake harms no request by itself, so it would go unnoticed. It is an event
//! (feature `tracing`), or without a subscriber a line on stderr, and a metric. The
//! invariant: no report names a tenant, and each owner reports a mistake once.

use std::{
    fmt,
    io::Write as _,
    sync::atomic::{AtomicU32, Ordering},
};

use super::facade::{metrics, tracing};

/// A mistake. Its number is that of its section in `docs/codes.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    NoTenant = 1,
    UntrustedProxy = 2,
    NoPeerAddress = 3,
    LayeredTwice = 4,
    UnmatchedRule = 5,
    UnusedTenant = 6,
    OtherHeader = 7,
    UnknownKey = 8,
    UnknownRule = 9,
    WithoutEffect = 10,
    SuspectProxy = 11,
    KeyNeverFound = 12,
    FailedSignal = 13,
    UnstatedUnit = 14,
}

/// Where the mistakes are explained.
const GUIDE: &str = "https://docs.rs/tower-ratelimit/latest/tower_ratelimit/guide/codes/";

/// What mistakes are called in events, in metrics and in the docs.
const CODES: [&str; 14] = [
    "RL001", "RL002", "RL003", "RL004", "RL005", "RL006", "RL007", "RL008", "RL009", "RL010", "RL011", "RL012",
    "RL013", "RL014",
];

impl Mistake {
    fn text(self) -> &'static str {
        match self {
            Self::NoTenant => {
                "no tenant was found, although an extractor is set: such requests share the anonymous tenant's \
                 counters; choose what happens to them with `on_missing_tenant`"
            }
            Self::UntrustedProxy => {
                "a request was forwarded, but no proxy is trusted: callers behind a proxy share its address; use \
                 `tenant::client_ip(TrustedProxies::cidrs(..))`"
            }
            Self::NoPeerAddress => {
                "the peer's address is unknown, so all callers share one counter: serve with \
                 `app.into_make_service_with_connect_info::<SocketAddr>()`, or insert a `PeerAddr`; or name the tenant with `.tenant(..)`: a \
                 `Tenant` in the extensions is read by `tenant::extension` only; around a client, use \
                 `RateLimitLayer::client`"
            }
            Self::LayeredTwice => {
                "a request passed two layers of the same limiter, and was charged twice: remove one, or give each its \
                 own limiter"
            }
            Self::UnmatchedRule => {
                "a rule applied to none of the first 10000 requests: its paths or methods may be misspelled, or nested \
                 routers may change the path"
            }
            Self::UnusedTenant => {
                "an `unlimited` tenant, or any tenant with a plan of the rule, sent none of the first 10000 requests: \
                 names may not be what the extractor returns"
            }
            Self::OtherHeader => {
                "a header names a tenant that the policy knows, but the extractor returns another one: it may read \
                 another header"
            }
            Self::UnknownKey => {
                "a rule counts by a key that the layer never looks for, so it does not apply, or callers share one \
                 counter: add it with `.key(..)`"
            }
            Self::UnknownRule => "a layer applies a rule that the policy does not have, so it limits nothing",
            Self::SuspectProxy => {
                "a proxy seems to be missing in `TrustedProxies`: all callers behind it share its address"
            }
            Self::KeyNeverFound => {
                "no request had a key by which a rule counts: what finds it may run inside of the layer; choose what \
                 happens to such requests with the rule's `on_missing_key`"
            }
            Self::FailedSignal => "a signal of overload panicked or was no number, and is ignored while it does",
            Self::UnstatedUnit => {
                "a request stated no cost in the unit of a rule, which charged it nothing: state it with `cost_in`"
            }
            Self::WithoutEffect => "a part of the policy is valid, and yet hardly what it is meant to be",
        }
    }
}

/// Lets every code's counter start at 0, from where the first mistake is an increase.
#[cfg(feature = "metrics")]
pub(super) fn start_counters() {
    for code in CODES {
        metrics::counter!("rate_limiting.mistakes", "code" => code).increment(0);
    }
}

/// The mistakes that their owner has reported.
#[derive(Debug, Default)]
pub(crate) struct Reported(AtomicU32);

impl Reported {
    /// Reports a mistake, unless it was. `detail` says where.
    pub(crate) fn report(&self, mistake: Mistake, detail: &dyn fmt::Display) {
        let bit = 1 << mistake as u32;
        if self.0.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let (code, text) = (CODES[mistake as usize - 1], mistake.text());
        metrics::counter!("rate_limiting.mistakes", "code" => code).increment(1);
        let section = code.to_ascii_lowercase();
        tracing::warn!(code, %detail, "{text}; see {GUIDE}#{section}");
        if std::env::var_os("TOWER_RATELIMIT_WARNINGS").is_none_or(|choice| choice != "off") {
            say_unheard(&format_args!("{code}: {text} ({detail}); see {GUIDE}#{section}"));
        }
    }
}

/// Writes to stderr what an operator has to know, where no subscriber takes events:
/// the first minute with the crate would be silent.
pub(crate) fn say_unheard(text: &dyn fmt::Display) {
    if tracing::dispatcher::has_been_set() {
        return;
    }
    // `eprintln!` panics where stderr is a pipe that nothing reads any more.
    let _ = writeln!(std::io::stderr(), "tower-ratelimit: {text}");
}
