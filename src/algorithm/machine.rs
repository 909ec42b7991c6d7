use super::{
    Claim, FixedWindow, InFlight, LeakyBucket, SlidingLog, SlidingWindow, Timeline, TokenBucket, WideGcra,
    adopting::Adopting, gcra::Gcra, limits::Rotation, paced::Paced,
};
use crate::{
    quota::{Algorithm, Quota},
    time::nanos,
};

/// The state machine of a quota, by the state that it keeps.
#[derive(Clone, Debug)]
pub(crate) enum Machine {
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    WideGcra(WideGcra),
    InFlight(InFlight),
    PacedWindow(Paced<FixedWindow>),
    PacedSliding(Paced<SlidingWindow>),
    SharedBucket(Adopting<TokenBucket>),
    SharedLeaky(Adopting<LeakyBucket>),
    SharedWide(Adopting<WideGcra>),
    SharedWindow(FixedWindow<Box<Rotation>>),
    PacedSharedWindow(Paced<FixedWindow<Box<Rotation>>>),
}

/// What a rule asks of the machines of its tiers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MachineOptions {
    /// Units are given back late: buckets keep more, to give back what others
    /// have built upon.
    pub(crate) settled_late: bool,
    /// Windows let their units out evenly.
    pub(crate) smooth: bool,
}

impl Machine {
    /// The machine of a quota that the policy has found valid.
    pub(crate) fn new(quota: &Quota, options: MachineOptions) -> Self {
        let (limit, window) = (quota.limit(), nanos(quota.window()).max(1));
        let burst = quota.capacity();
        match quota.counted_by() {
            Algorithm::TokenBucket if options.settled_late => Self::WideGcra(WideGcra::bucket(limit, window, burst)),
            Algorithm::LeakyBucket if options.settled_late => Self::WideGcra(WideGcra::spaced(limit, window, burst)),
            Algorithm::TokenBucket => TokenBucket::new(limit, window, burst)
                .map_or_else(|| Self::WideGcra(WideGcra::bucket(limit, window, burst)), Self::TokenBucket),
            Algorithm::LeakyBucket => LeakyBucket::new(limit, window, burst)
                .map_or_else(|| Self::WideGcra(WideGcra::spaced(limit, window, burst)), Self::LeakyBucket),
            Algorithm::FixedWindow => Self::windowed(FixedWindow::aligned(limit, window), options),
            Algorithm::AnchoredWindow => Self::windowed(FixedWindow::anchored(limit, window), options),
            Algorithm::SlidingWindow if options.smooth => Self::PacedSliding(Paced(SlidingWindow::new(limit, window))),
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::new(limit, window)),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::new(limit, window)),
            Algorithm::InFlight => Self::InFlight(InFlight::new(limit)),
        }
    }

    /// The machine of an instance's share of the quota that this is the
    /// machine of; and when there is to be another, at the end of time for
    /// never.
    pub(crate) fn share(&self, quota: &Quota, timeline: &Timeline, now: u64) -> (Self, u64) {
        let (limit, window) = (quota.limit(), nanos(quota.window()).max(1));
        let whole = (limit, window, quota.capacity());
        let rotation = || Rotation::new(limit, timeline);
        // Where there are no turns to take, since no two instances have the
        // same windows; raised when so many have passed.
        let fixed = |windows| timeline.least(now, window.saturating_mul(windows), |portion| portion.fixed(limit));
        let machine = match self {
            Self::TokenBucket(_) | Self::SharedBucket(_) => {
                Self::SharedBucket(Adopting::new(whole, timeline, |rate, burst, tag| {
                    TokenBucket::with(Gcra::of_share(rate, burst, tag))
                }))
            }
            Self::LeakyBucket(_) | Self::SharedLeaky(_) => {
                Self::SharedLeaky(Adopting::new(whole, timeline, |rate, burst, tag| {
                    LeakyBucket::with(Gcra::of_share(rate, burst, tag))
                }))
            }
            Self::WideGcra(_) | Self::SharedWide(_) => {
                let spaced = quota.counted_by() == Algorithm::LeakyBucket;
                Self::SharedWide(Adopting::new(whole, timeline, |rate, burst, tag| {
                    WideGcra::of_share(rate, burst, tag, spaced)
                }))
            }
            Self::FixedWindow(machine) if !machine.is_aligned() => {
                let (limit, until) = fixed(1);
                return (Self::FixedWindow(FixedWindow::anchored(limit, window)), until);
            }
            Self::PacedWindow(Paced(machine)) if !machine.is_aligned() => {
                let (limit, until) = fixed(1);
                return (Self::PacedWindow(Paced(FixedWindow::anchored(limit, window))), until);
            }
            // Aligned, but what was left over for one window weighs upon the
            // next, where another has it.
            Self::SlidingWindow(_) => {
                let (limit, until) = fixed(2);
                return (Self::SlidingWindow(SlidingWindow::new(limit, window)), until);
            }
            Self::PacedSliding(_) => {
                let (limit, until) = fixed(2);
                return (Self::PacedSliding(Paced(SlidingWindow::new(limit, window))), until);
            }
            Self::SlidingLog(_) => {
                let (limit, until) = fixed(1);
                return (Self::SlidingLog(SlidingLog::new(limit, window)), until);
            }
            Self::FixedWindow(_) | Self::SharedWindow(_) => {
                Self::SharedWindow(FixedWindow::varying(rotation(), window))
            }
            Self::PacedWindow(_) | Self::PacedSharedWindow(_) => {
                Self::PacedSharedWindow(Paced(FixedWindow::varying(rotation(), window)))
            }
            Self::InFlight(_) => {
                Self::InFlight(InFlight::new(timeline.least(now, 0, |portion| portion.fixed(limit)).0))
            }
        };
        (machine, u64::MAX)
    }

    /// A machine that lets nothing pass.
    pub(crate) fn nothing() -> Self {
        Self::InFlight(InFlight::new(0))
    }

    fn windowed(machine: FixedWindow, options: MachineOptions) -> Self {
        if options.smooth { Self::PacedWindow(Paced(machine)) } else { Self::FixedWindow(machine) }
    }

    /// The claim on what was committed for `at`; `full_at` is when the quota
    /// was to be full again, and `detail` what the machine said to remember.
    pub(crate) fn claim(&self, at: u64, cost: u64, full_at: u64, detail: u64) -> Claim {
        let claim = Claim { units: cost, at, until: full_at, detail };
        match self {
            Self::FixedWindow(_)
            | Self::SlidingWindow(_)
            | Self::PacedWindow(_)
            | Self::PacedSliding(_)
            | Self::SharedWindow(_)
            | Self::PacedSharedWindow(_) => Claim { detail: cost, ..claim },
            Self::SlidingLog(_) => Claim { until: 0, ..claim },
            _ => claim,
        }
    }

    /// The longest wait, in nanoseconds, that may be reserved: a leaky
    /// bucket's queue is bounded by its burst.
    pub(crate) fn longest_wait(&self) -> u64 {
        match self {
            Self::LeakyBucket(machine) => machine.longest_wait(),
            Self::WideGcra(machine) => machine.longest_wait(),
            Self::SharedLeaky(machine) => machine.inner().longest_wait(),
            Self::SharedWide(machine) => machine.inner().longest_wait(),
            _ => u64::MAX,
        }
    }
}
