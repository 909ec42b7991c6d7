//! This process's copy of one charge's counters: what was charged here and is not
//! reported yet, and what may still be charged.
//!
//! Invariant: a unit that was charged here is in the copy, or in exactly one report.

use std::{mem, sync::Arc};

use smallvec::SmallVec;

use super::{
    budget::{Budget, MAX_STALENESS},
    counts::Counts,
    timed_units::TimedUnits,
};
use crate::{
    backend::redis::plan::{Counters, KeyReport, Report, ReportOp},
    store::Evictable,
};

/// For how long, in nanoseconds, a key may be unused here before it is new again.
const GAP: u64 = 1_000_000_000;

/// By how many nanoseconds the clock may be behind the last known counts. If it was set
/// back by more, they are not for this time.
const SET_BACK: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(super) struct LocalCopy {
    pub(super) counters: Option<Arc<Counters>>,
    /// What the store has charged, as far as it is known, and what was charged here on top.
    pub(super) counts: Counts,
    /// Units charged here that are not reported, and when the first of them was, on
    /// the store's clock.
    pub(super) units: u64,
    since: u64,
    pub(super) budget: Budget,
    /// Boxed, since there are seldom any.
    others: Option<Box<Others>>,
    generation: u32,
    /// Units that the store is asked to charge exactly.
    asked: u64,
    /// Units that were charged by this process since the last renewal.
    pub(super) own: u64,
    /// Whether the store's counts are known, and the budget is theirs.
    is_known: bool,
    /// Whether a report is scheduled, at once, or on its way.
    is_scheduled: bool,
    is_early: bool,
    is_due: bool,
    is_sent: bool,
    /// The call by which the store's counts are known.
    pub(super) renewed_by: u64,
    /// The call that carries its last report.
    sent_in: u64,
    /// Units that the store charged after its last report was sent: the reply lacks them.
    /// Boxed, since there are seldom any.
    charged_since: Option<Box<TimedUnits>>,
    /// When a request last used it, on the limiter's clock.
    touched: u64,
}

/// Reports of units of windows that have ended, and of units that are given back.
#[derive(Debug, Default)]
struct Others(Vec<Report>);

/// Whether a copy may decide a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reserved {
    /// Its units are counted. `wait` is set if a report has to be scheduled.
    Granted { now: u64, wait: Option<u64> },
    /// What the store knows admits it or not; but the copy may not charge it.
    Exhausted { now: u64, age: u64 },
    /// There are no counts to decide by.
    Unknown,
}

impl LocalCopy {
    /// Counts units that are about to be charged. `now` is the limiter's.
    #[inline]
    pub(super) fn reserve(&mut self, version: u64, cost: u64, now: u64, ahead: i64) -> Reserved {
        self.touched = now;
        let Some(counters) =
            self.counters.as_ref().filter(|counters| self.is_known && counters.shared.version == version)
        else {
            return Reserved::Unknown;
        };
        let (interval, now) = (counters.shared.interval, on_store(now, ahead));
        if now >= self.budget.rolls {
            self.roll(now);
        }
        if now.saturating_add(SET_BACK) < self.budget.at() {
            return Reserved::Unknown;
        }
        if cost > self.budget.units || !self.is_fresh(now, interval) {
            return Reserved::Exhausted { now, age: self.age(now) };
        }
        self.budget.units -= cost;
        Reserved::Granted { now, wait: self.count(cost, now) }
    }

    /// Counts units. Returns how long a report may wait, if it has to be scheduled.
    fn count(&mut self, cost: u64, now: u64) -> Option<u64> {
        if cost == 0 {
            return None;
        }
        if self.units == 0 {
            self.since = now;
        }
        self.units = self.units.saturating_add(cost);
        self.own = self.own.saturating_add(cost);
        let is_early = !self.is_early && self.units / 3 >= self.budget.units;
        if !self.is_scheduled {
            (self.is_scheduled, self.is_early) = (true, is_early);
        } else if !is_early {
            return None;
        }
        self.is_early |= is_early;
        Some(if is_early { 0 } else { self.budget.wait })
    }

    /// Whether it is known what the store has charged under a policy.
    pub(super) fn is_known_as(&self, version: u64) -> bool {
        self.is_known && self.counters.as_ref().is_some_and(|own| own.shared.version == version)
    }

    /// Whether it is a copy of these counters, under this policy.
    pub(super) fn is_of(&self, counters: &Arc<Counters>) -> bool {
        self.counters.as_ref().is_some_and(|own| Arc::ptr_eq(own, counters))
    }

    /// The store is asked to charge units: they are no longer this copy's to charge.
    pub(super) fn ask(&mut self, cost: u64, now: u64) {
        self.touched = now;
        self.asked = self.asked.saturating_add(cost);
        self.budget.units = self.budget.units.saturating_sub(cost);
    }

    /// The store has decided.
    pub(super) fn on_decided(&mut self, cost: u64) {
        self.asked = self.asked.saturating_sub(cost);
    }

    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Takes back units that were reserved and not charged.
    pub(super) fn cancel(&mut self, cost: u64, now: u64) {
        self.budget.units = self.budget.units.saturating_add(cost);
        self.own = self.own.saturating_sub(cost);
        let unsent = self.units.min(cost);
        self.units -= unsent;
        if unsent < cost {
            self.report_apart(Report { op: ReportOp::GiveBack, units: cost - unsent, at: now });
        }
    }

    fn report_apart(&mut self, report: Report) {
        self.others.get_or_insert_default().0.push(report);
    }

    /// Counts units that it was [asked](Self::ask) for by what this process may charge
    /// alone: the store does not reply to this request. `None` if that is used up, or the
    /// counts are too old. The store may still charge what else it was asked for.
    pub(super) fn force(&mut self, counters: &Arc<Counters>, cost: u64, ahead: i64) -> Option<(u64, Option<u64>)> {
        let now = on_store(self.touched, ahead);
        let is_known = self.is_of(counters)
            && self.is_known
            && now.saturating_sub(self.budget.at()) <= MAX_STALENESS * counters.shared.interval;
        if is_known && now >= self.budget.rolls {
            self.roll(now);
        }
        let is_known = is_known && self.own.saturating_add(self.asked.max(cost)) <= self.budget.alone(now);
        is_known.then(|| (now, self.count(cost, now)))
    }

    /// A window has ended. What was charged in it is reported as of then.
    #[cold]
    fn roll(&mut self, now: u64) {
        if self.units > 0 {
            let units = mem::take(&mut self.units);
            self.report_apart(Report { op: ReportOp::Charge, units, at: self.since });
        }
        self.budget.roll(now, self.own);
    }

    fn is_fresh(&self, now: u64, interval: u64) -> bool {
        let is_expected = self.is_scheduled || self.is_due || self.is_sent;
        self.budget.is_fresh(now, interval, is_expected.then_some(MAX_STALENESS))
    }

    /// For how long the counts were not renewed.
    pub(super) fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.budget.at())
    }

    /// Takes other counters from now on. Returns what is left to report of the
    /// earlier ones.
    pub(super) fn replace(&mut self, counters: &Arc<Counters>) -> Option<KeyReport> {
        let report = self.has_reports().then(|| self.report(0, 0)).flatten();
        let (generation, touched) = (self.generation.wrapping_add(1), self.touched);
        *self = Self { counters: Some(Arc::clone(counters)), generation, touched, ..Self::default() };
        report
    }

    /// Whether it is to be reported at once from now on, and was not before.
    pub(super) fn make_due(&mut self) -> bool {
        !mem::replace(&mut self.is_due, true)
    }

    /// Whether a scheduled report still has to be made.
    pub(super) fn is_scheduled(&self) -> bool {
        self.is_scheduled
    }

    pub(super) fn has_reports(&self) -> bool {
        self.units > 0 || self.others.is_some()
    }

    /// Units that are not in a report.
    pub(super) fn unreported(&self) -> u64 {
        let others = self.others.iter().flat_map(|others| &others.0);
        let ended = others.filter(|report| report.op == ReportOp::Charge);
        ended.fold(self.units, |all, report| all.saturating_add(report.units))
    }

    /// A report leaves in a call of this number.
    pub(super) fn on_sent(&mut self, call: u64) {
        (self.sent_in, self.charged_since) = (call, None);
    }

    /// The store has charged the units of a request that was made at `at`, by the limiter's
    /// clock, and sent after the call `after`. Whether the counts that are known lack them.
    pub(super) fn on_charged(&mut self, units: u64, at: u64, after: u64) -> bool {
        self.own = self.own.saturating_add(units);
        if self.is_sent && after >= self.sent_in {
            self.charged_since.get_or_insert_default().add(units, at);
        }
        self.renewed_by <= after
    }

    /// Takes the units that a reply lacks, and when each were charged, on the store's clock:
    /// those that the store charged, and those that are not reported, which count from the
    /// first of them, as in their report. In order, and not before the store `read` its
    /// counts. The reply has shown how far its clock is `ahead`.
    pub(super) fn missing_from_reply(&mut self, read: u64, ahead: i64) -> SmallVec<[(u64, u64); 2]> {
        let charged = self.charged_since.take().map(|charged| charged.into_inner()).unwrap_or_default();
        let charged = charged.into_iter().map(|(at, units)| (on_store(at, ahead), units));
        let own = (self.units > 0).then_some((self.since, self.units));
        let mut all: SmallVec<_> = charged.chain(own).map(|(at, units)| (at.max(read), units)).collect();
        all.sort_unstable_by_key(|(at, _)| *at);
        all
    }

    /// Takes what is to be reported. `now` is the store's.
    pub(super) fn report(&mut self, now: u64, call: u64) -> Option<KeyReport> {
        let counters = Arc::clone(self.counters.as_ref()?);
        if self.age(now) > 2 * counters.shared.interval + GAP {
            self.budget = Budget::new(now);
        }
        let mut reports = self.others.take().map(|others| others.0).unwrap_or_default();
        let at = if self.units > 0 { self.since } else { now };
        let units = mem::take(&mut self.units);
        reports.push(Report { op: ReportOp::Charge, units, at });
        (self.is_scheduled, self.is_early, self.is_due, self.is_sent) = (false, false, false, true);
        self.on_sent(call);
        Some(KeyReport { counters, generation: self.generation, reports })
    }

    /// The store has taken a report, or it is not known whether it has. Whether its
    /// counts are those of this copy.
    pub(super) fn on_reply(&mut self, report: &KeyReport) -> bool {
        if !self.is_of(&report.counters) || self.generation != report.generation {
            return false;
        }
        self.is_sent = false;
        true
    }

    pub(super) fn know(&mut self, call: u64) {
        (self.is_known, self.renewed_by) = (true, call);
    }

    /// Whether it was not used since `before`, and the store has all that it counts.
    fn is_idle(&self, before: u64) -> bool {
        self.touched < before && !self.has_reports() && !self.is_due && !self.is_sent
    }

    /// What it knows of the store is void: others have changed the counters there.
    pub(super) fn invalidate(&mut self) {
        (self.is_known, self.is_sent) = (false, false);
        self.generation = self.generation.wrapping_add(1);
    }
}

impl Evictable for Option<Box<LocalCopy>> {
    fn is_idle(&self, before: u64) -> bool {
        self.as_ref().is_none_or(|copy| copy.is_idle(before))
    }
}

/// A time of the limiter on the store's clock, which counts whole microseconds.
#[inline]
pub(super) fn on_store(now: u64, ahead: i64) -> u64 {
    let now = now.saturating_add_signed(ahead);
    now - now % 1_000
}
