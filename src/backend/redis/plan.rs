//! Charges as the script takes them.

use std::time::Duration;

use super::{
    groups::Slot,
    key::{key, tag},
    number::{EXACT_LIMIT, LONGEST, Rate, Span, exact, micros, micros_up},
};
use crate::{
    backend::{AcquireRequest, Charge},
    error::{BackendError, BackendErrorKind},
    fingerprint::Fingerprint,
    policy::Tier,
    quota::Algorithm,
    time::nanos,
};

/// The most tiers that one request can be charged at once: the script says of
/// each, in one number, whether it makes the request wait.
const MOST_TIERS: usize = 50;

/// How a tier counts, in the script's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Definition {
    pub(super) kind: Kind,
    pub(super) cost: u64,
    limit: u64,
    window: u64,
    longest: u64,
    flags: u64,
    units: u64,
    period: u64,
    takes: Span,
    slack: Span,
    spare: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Bucket = 1,
    Aligned = 2,
    Anchored = 3,
    Sliding = 4,
    Log = 5,
    InFlight = 6,
}

impl Kind {
    fn of(tier: &Tier) -> Self {
        match tier.quota().counted_by() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::Bucket,
            Algorithm::FixedWindow => Self::Aligned,
            Algorithm::AnchoredWindow => Self::Anchored,
            Algorithm::SlidingWindow => Self::Sliding,
            Algorithm::SlidingLog => Self::Log,
            Algorithm::InFlight => Self::InFlight,
        }
    }

    /// Whether it takes more than the plain script has.
    fn is_hard(self) -> bool {
        matches!(self, Self::Sliding | Self::Log | Self::InFlight)
    }

    /// Whether what it counts stands in a sorted set beside it.
    pub(super) fn has_set(self) -> bool {
        matches!(self, Self::Log | Self::InFlight)
    }
}

const NEVER: u64 = 1;
const SMOOTH: u64 = 2;
const LATE: u64 = 4;

impl Definition {
    pub(super) fn new(charge: &Charge<'_>, tier: &Tier, cost: u64, lease: Duration) -> Self {
        let (quota, kind) = (tier.quota(), Kind::of(tier));
        let window = micros_up(nanos(quota.window())).clamp(1, LONGEST);
        // A turn in a queue is rounded up, and so is the queue's length.
        let longest = micros(charge.max_wait).min(micros_up(tier.machine.longest_wait()));
        let smooth = tier.machine.is_smooth();
        let late = kind == Kind::Bucket && charge.applied.rule.is_settled_late();
        let flags = if smooth { SMOOTH } else { 0 } | if late { LATE } else { 0 };
        let plain = Self {
            kind,
            cost: exact(cost),
            limit: quota.limit().min(EXACT_LIMIT),
            window,
            longest,
            flags,
            units: 1,
            period: 1,
            takes: Span::default(),
            slack: Span::default(),
            spare: 0,
        };
        match kind {
            Kind::Bucket => plain.bucket(tier, cost),
            Kind::InFlight => Self { window: micros(nanos(lease)).max(1), ..plain.fits(plain.limit, cost) },
            _ => plain.fits(plain.limit, cost),
        }
    }

    fn fits(self, capacity: u64, cost: u64) -> Self {
        let never = cost > capacity || capacity == 0;
        Self { flags: self.flags | if never { NEVER } else { 0 }, ..self }
    }

    fn bucket(self, tier: &Tier, cost: u64) -> Self {
        let rate = rate(tier);
        let capacity = capacity(tier, &rate);
        let leaky = tier.quota().counted_by() == Algorithm::LeakyBucket;
        let spare = if leaky { 0 } else { capacity.saturating_sub(cost) };
        let time_for = |units| rate.time_for(units).unwrap_or_default();
        let Rate { units, period, limit, window } = rate;
        let takes = if cost > capacity { Span::default() } else { time_for(cost) };
        let bucket = Self { limit, window, units, period, takes, slack: time_for(spare), spare, ..self };
        bucket.fits(capacity, cost)
    }

    /// Whether a bucket remembers what was given back.
    pub(super) fn is_late(&self) -> bool {
        self.flags & LATE != 0
    }

    /// What its cost takes of a bucket.
    pub(super) fn takes(&self) -> Span {
        self.takes
    }

    /// Does it hold units for as long as something is in flight?
    pub(super) fn holds(&self) -> bool {
        self.kind == Kind::InFlight && self.cost > 0
    }

    /// Those that the script for one takes.
    pub(super) fn few(&self) -> [u64; 10] {
        let Self { cost, limit, window, flags, takes, slack, units, .. } = *self;
        let kind = self.kind as u64;
        [kind, cost, limit, window, flags, takes.micros, takes.parts, slack.micros, slack.parts, units]
    }

    /// In the order that the script reads them in.
    pub(super) fn numbers(&self) -> [u64; 13] {
        [
            self.kind as u64,
            self.cost,
            self.limit,
            self.window,
            self.longest,
            self.flags,
            self.units,
            self.period,
            self.takes.micros,
            self.takes.parts,
            self.slack.micros,
            self.slack.parts,
            self.spare,
        ]
    }
}

/// A bucket's rate.
pub(super) fn rate(tier: &Tier) -> Rate {
    Rate::new(tier.quota().limit(), tier.quota().window())
}

/// The most units that a bucket lets pass at once.
pub(super) fn capacity(tier: &Tier, rate: &Rate) -> u64 {
    if tier.quota().limit() == 0 { 0 } else { tier.quota().capacity().min(rate.most()).min(EXACT_LIMIT) }
}

/// One tier of a charge.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) key: String,
    pub(super) definition: Definition,
    /// What turns the script's numbers into those of the answer.
    pub(super) scale: Scale,
}

/// What is to be known of a tier to read where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scale {
    Bucket { rate: Rate, capacity: u64, leaky: bool },
    Counted,
}

impl Scale {
    fn of(tier: &Tier) -> Self {
        match Kind::of(tier) {
            Kind::Bucket => {
                let rate = rate(tier);
                let leaky = tier.quota().counted_by() == Algorithm::LeakyBucket;
                Self::Bucket { rate, capacity: capacity(tier, &rate), leaky }
            }
            _ => Self::Counted,
        }
    }
}

/// What one request is charged in one slot of a cluster; where there is none,
/// all that it is charged.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// What names the slot; empty where there is one for all.
    pub(super) tag: String,
    pub(super) parts: Vec<Part>,
    /// The keys of the charges that are asked about, with the places of their
    /// tiers among the parts: to name the one that is full.
    pub(super) in_flight: Vec<(usize, Fingerprint)>,
    /// Microseconds.
    pub(super) max_wait: u64,
    /// Microseconds from now.
    pub(super) not_before: u64,
    /// Microseconds since the Unix epoch, where the limiter's clock decides.
    pub(super) now: Option<u64>,
    /// Tells those apart that this process has asked.
    pub(super) request: u64,
    /// The plain script could not tell.
    pub(super) is_hard: bool,
}

/// What all asks of a backend have in common.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    pub(super) prefix: String,
    pub(super) lease: Duration,
    pub(super) limiter_time: bool,
    /// Whether keys of several tags may be in one call.
    pub(super) one_slot: bool,
}

impl Ask {
    /// The asks for one request, one for each slot, and for every charge which
    /// one it is in.
    pub(super) fn all(
        manner: &Manner,
        request: &AcquireRequest<'_>,
        number: u64,
    ) -> Result<(Vec<Self>, Vec<Slot>), BackendError> {
        let tiers: usize = request.charges.iter().map(|charge| charge.tiers().len()).sum();
        if tiers > MOST_TIERS {
            let reason = format!("a request is charged {tiers} tiers at once, more than {MOST_TIERS}");
            return Err(BackendError::new(BackendErrorKind::Unsupported, reason));
        }
        let (mut asks, mut slots) = (Vec::<Self>::new(), Vec::new());
        for charge in request.charges {
            let tag = if manner.one_slot { String::new() } else { tag(charge) };
            let group = asks.iter().position(|ask| manner.one_slot || ask.tag == tag);
            let index = group.unwrap_or_else(|| {
                asks.push(Self::empty(manner, request, tag, number));
                asks.len() - 1
            });
            slots.push(Slot { group: index, tiers: charge.tiers().len() });
            asks[index].add(manner, charge);
        }
        Ok((asks, slots))
    }

    fn empty(manner: &Manner, request: &AcquireRequest<'_>, tag: String, number: u64) -> Self {
        Self {
            tag,
            parts: Vec::with_capacity(1),
            in_flight: Vec::new(),
            max_wait: micros(nanos(request.max_wait)),
            not_before: 0,
            now: manner.limiter_time.then(|| micros(request.now.as_nanos())),
            request: number,
            is_hard: false,
        }
    }

    fn add(&mut self, manner: &Manner, charge: &Charge<'_>) {
        for tier in charge.tiers() {
            if tier.is_in_flight() {
                self.in_flight.push((self.parts.len(), charge.applied.key.tier(tier.salt)));
            }
            self.parts.push(Part {
                key: key(&manner.prefix, charge, tier),
                definition: Definition::new(charge, tier, charge.cost, manner.lease),
                scale: Scale::of(tier),
            });
        }
    }

    /// How long any of the tiers could make it wait.
    fn longest(&self) -> u64 {
        self.parts.iter().map(|part| part.definition.longest).max().unwrap_or(0).min(self.max_wait)
    }

    /// Whether several that are charged the same can be decided as one. Each
    /// wait is another, and who holds something is known by its number.
    pub(super) fn is_mergeable(&self) -> bool {
        self.longest() == 0 && self.not_before == 0 && !self.parts.iter().any(|part| part.definition.holds())
    }

    /// Whether the plain script decides it.
    pub(super) fn is_plain(&self) -> bool {
        !self.is_hard && self.is_mergeable() && !self.parts.iter().any(|part| part.definition.kind.is_hard())
    }
}
