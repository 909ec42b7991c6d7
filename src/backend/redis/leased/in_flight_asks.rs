//! What is on its way between a pool and the store: refills, and units that are given
//! back. It has no units.
//!
//! Invariant: what the store has leased and no reply has brought counts as lost only while
//! no ask is under way that may bring it. While one is, the pool is not at rest.

/// For how long an asked refill is waited for before another is asked for, beyond
/// its interval.
const REPLY_WITHIN: u64 = 1_000_000_000;

/// The number of an ask, of the last one that was received before it, and of the last
/// one that is gone. What is between these two was lost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AskNumbers {
    pub(crate) own: u32,
    pub(crate) known: u32,
    pub(crate) lost: u32,
}

impl AskNumbers {
    /// Whether the reply may bring units for the pool, besides those that are leased
    /// `ahead`: those that were lost.
    pub(crate) fn is_refill(self, ahead: u64) -> bool {
        ahead > 0 || self.lost != self.known
    }
}

/// What became of the refills that were asked for last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AskState {
    /// All have ended, or there was none.
    #[default]
    Ended,
    /// It is sent at the end of the interval.
    Scheduled,
    /// It was sent.
    Asked,
    /// It was sent under an earlier policy: its units will be given back.
    Superseded,
}

/// What is under way. Small, since every key has one.
#[derive(Debug, Default)]
pub(super) struct InFlightAsks {
    /// The number of the last ask, and by how much that of the last one that was received
    /// is lower. What was lost 255 asks ago stays lost.
    number: u32,
    unknown: u8,
    /// How many are scheduled or under way, and how many of them are refills: several
    /// where threads ask at the same time, or a reply takes long.
    under_way: u8,
    refills: u8,
    /// Until when no other refill is asked for.
    until: Moment,
    /// How many times units were given back, and the store is not told yet; and was.
    returning: u8,
    returned: u8,
    last: AskState,
}

impl InFlightAsks {
    /// A refill is asked for now, or at the end of the interval.
    pub(super) fn ask(&mut self, now: u64, interval: u64, is_sent: bool) -> AskNumbers {
        let numbers = self.numbers(true);
        self.until = Moment::of(now.saturating_add(interval).saturating_add(REPLY_WITHIN));
        self.last = if is_sent { AskState::Asked } else { AskState::Scheduled };
        numbers
    }

    /// A request asks for itself only. That says nothing of the refill.
    pub(super) fn ask_alone(&mut self) -> AskNumbers {
        self.numbers(false)
    }

    /// The numbers of the next ask, which leases units ahead or does not.
    fn numbers(&mut self, leases_ahead: bool) -> AskNumbers {
        let before = self.number;
        self.number = self.number.wrapping_add(1);
        self.unknown = self.unknown.saturating_add(1);
        let known = self.number.wrapping_sub(self.unknown.into());
        // What another ask brings is not lost yet.
        let lost = if self.under_way == 0 { before } else { known };
        let numbers = AskNumbers { own: self.number, known, lost };
        add(&mut self.under_way);
        if numbers.is_refill(leases_ahead.into()) {
            add(&mut self.refills);
        }
        numbers
    }

    /// The refill that was scheduled is sent, if it `is_needed`.
    pub(super) fn on_due(&mut self, is_needed: bool) {
        self.last = if is_needed { AskState::Asked } else { AskState::Ended };
    }

    /// The reply to the ask of this number is here.
    pub(super) fn on_reply(&mut self, number: u32, is_refill: bool) {
        let later = self.number.wrapping_sub(number);
        self.unknown = u8::try_from(later).map_or(self.unknown, |later| later.min(self.unknown));
        if is_refill && self.refills <= 1 {
            self.last = AskState::Ended;
        }
    }

    /// The ask of this number is gone. Whether it was an expected refill, and had no reply.
    pub(super) fn on_gone(&mut self, number: u32, is_refill: bool) -> bool {
        subtract(&mut self.under_way);
        if !is_refill {
            return false;
        }
        subtract(&mut self.refills);
        let is_lost = self.last != AskState::Ended && !self.is_received(number);
        if self.refills == 0 {
            self.last = AskState::Ended;
        }
        is_lost
    }

    /// Whether this ask or a later one was received.
    fn is_received(&self, number: u32) -> bool {
        self.number.wrapping_sub(number) >= self.unknown.into()
    }

    /// The policy has changed, or the clock was set back. What was sent is expected: its
    /// units are given back then.
    pub(super) fn supersede(&mut self, now: u64) {
        self.last = if self.is_asked(now) { AskState::Superseded } else { AskState::Ended };
        // What was lost before is of other counters.
        self.unknown = 0;
    }

    /// The store has lost its counters.
    pub(super) fn forget(&mut self) {
        (self.last, self.unknown) = (AskState::Ended, 0);
    }

    pub(super) fn on_giving_back(&mut self) {
        add(&mut self.returning);
    }

    /// The store is told of units that were given back.
    pub(super) fn on_returned(&mut self) {
        subtract(&mut self.returning);
        self.returned = self.returned.wrapping_add(1);
    }

    /// Differs once more units were given back.
    pub(super) fn returned(&self) -> u8 {
        self.returned
    }

    /// Whether this is the number of the last ask.
    pub(super) fn is_last(&self, number: u32) -> bool {
        number == self.number
    }

    pub(super) fn is_scheduled(&self) -> bool {
        self.last == AskState::Scheduled
    }

    /// Whether a refill was sent, and no other is asked for meanwhile.
    pub(super) fn is_asked(&self, now: u64) -> bool {
        matches!(self.last, AskState::Asked | AskState::Superseded) && self.until.is_after(now)
    }

    /// Whether a refill is under way or scheduled, or units on their way to the store.
    pub(super) fn are_under_way(&self) -> bool {
        self.returning > 0 || self.refills > 0
    }

    /// Whether a refill is expected that was asked for under an earlier policy.
    pub(super) fn are_superseded(&self) -> bool {
        self.last == AskState::Superseded
    }

    /// Whether no ask and no give-back refers to it any more.
    pub(super) fn are_over(&self) -> bool {
        self.returning == 0 && self.under_way == 0
    }
}

/// Counts one more. At the maximum it is not known any more how many there are.
fn add(count: &mut u8) {
    *count = count.saturating_add(1);
}

/// Counts one less, unless it is not known how many there are.
fn subtract(count: &mut u8) {
    if *count < u8::MAX {
        *count = count.saturating_sub(1);
    }
}

/// A time, in eighths of a second, about. It can be told from times that are less than an
/// hour away: asks end long before.
#[derive(Clone, Copy, Debug, Default)]
struct Moment(u16);

impl Moment {
    #[allow(clippy::cast_possible_truncation, reason = "wraps")]
    fn of(nanos: u64) -> Self {
        Self((nanos >> 27) as u16)
    }

    fn is_after(self, now: u64) -> bool {
        #[allow(clippy::cast_possible_wrap, reason = "the sign of the difference")]
        let left = self.0.wrapping_sub(Self::of(now).0) as i16;
        left > 0
    }
}
