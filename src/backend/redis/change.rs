//! What is given back, added and let go of, as the script takes it.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
};

use super::{
    batch::{Head, Number, Row, Tables},
    key::{key, tag},
    number::{Span, exact, micros, micros_up},
    pack::Reader,
    plan::{Ask, Definition, Kind, Manner, Part, rate},
    script::{CHANGE, Call},
};
use crate::{
    algorithm::Claim,
    backend::{Charge, Outcome, Receipt, Settlement, TierClaim, TierState},
    error::BackendError,
    policy::Tier,
    time::Timestamp,
};

/// What is to become of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Refund,
    Release,
    Settle(Settlement),
}

impl What {
    /// Whether where a claim stands is known only once it is done.
    pub(super) fn moves_claims(self) -> bool {
        matches!(self, Self::Refund | Self::Settle(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    GiveBack = 1,
    Owe = 2,
    LetGo = 3,
    HoldOn = 4,
}

/// One counter's part of it.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) tag: String,
    pub(super) key: String,
    pub(super) now: Option<u64>,
    deed: Deed,
    definition: Definition,
    units: u64,
    takes: Span,
    left: u64,
    /// What is left takes so long, in microseconds.
    alone: u64,
    at: u64,
    until: u64,
    mark: u64,
    request: u64,
    /// Its place among the tiers of the receipt.
    place: usize,
}

/// Units in flight that this process holds. Known by their counter and the
/// request that holds them.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) tag: String,
    pub(super) key: String,
    pub(super) request: u64,
    pub(super) definition: Definition,
}

impl PartialEq for Lease {
    fn eq(&self, other: &Self) -> bool {
        (self.request, &self.key) == (other.request, &other.key)
    }
}

impl Eq for Lease {}

impl Hash for Lease {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.request, &self.key).hash(state);
    }
}

impl Lease {
    /// A change that holds on to it for another while.
    pub(super) fn hold_on(&self, now: Option<u64>) -> Change {
        self.change(Deed::HoldOn, now)
    }

    pub(super) fn let_go(&self, now: Option<u64>) -> Change {
        self.change(Deed::LetGo, now)
    }

    fn change(&self, deed: Deed, now: Option<u64>) -> Change {
        Change {
            tag: self.tag.clone(),
            key: self.key.clone(),
            now,
            deed,
            definition: self.definition,
            units: self.definition.cost,
            takes: Span::default(),
            left: 0,
            alone: 0,
            at: 0,
            until: 0,
            mark: 0,
            request: self.request,
            place: 0,
        }
    }

    /// That of a change to what is in flight, and whether it is held on to.
    pub(super) fn of(change: &Change) -> Option<(Self, bool)> {
        matches!(change.deed, Deed::LetGo | Deed::HoldOn).then(|| {
            let lease = Self {
                tag: change.tag.clone(),
                key: change.key.clone(),
                request: change.request,
                definition: change.definition,
            };
            (lease, change.deed == Deed::HoldOn)
        })
    }
}

impl Change {
    /// What is to be done about a receipt. What is given back is no longer
    /// left to give back from here on, whatever comes of it.
    pub(super) fn all(manner: &Manner, receipt: &Receipt, what: What, now: Timestamp) -> Vec<Self> {
        let mut changes = Vec::new();
        let mut place = 0;
        receipt.for_each(|charge, tier, owned| {
            let change = Self::new(manner, charge, tier, owned, what);
            changes.extend(change.map(|change| {
                let now = manner.limiter_time.then(|| micros(now.as_nanos()));
                Self { now, place, ..change }
            }));
            place += 1;
        });
        changes
    }

    fn new(manner: &Manner, charge: &Charge<'_>, tier: &Tier, owned: &mut TierClaim, what: What) -> Option<Self> {
        let claim = &mut owned.claim;
        let in_flight = tier.is_in_flight();
        let of_rule = |units: u64| units.saturating_mul(charge.applied.rule.cost);
        let (deed, units) = match what {
            What::Refund | What::Release if in_flight => (Deed::LetGo, claim.units),
            What::Release => return None,
            What::Settle(_) if in_flight => return None,
            What::Refund => (Deed::GiveBack, claim.units),
            What::Settle(Settlement::GiveBack(units)) => (Deed::GiveBack, of_rule(units).min(claim.units)),
            What::Settle(Settlement::Add(units)) => (Deed::Owe, exact(of_rule(units))),
        };
        if units == 0 {
            return None;
        }
        let tag = if manner.one_slot { String::new() } else { tag(charge) };
        let key = key(&manner.prefix, charge, tier);
        let cost = if in_flight { units } else { charge.cost };
        let definition = Definition::new(charge, tier, cost, manner.lease);
        let left = claim.units;
        if deed != Deed::Owe {
            claim.units -= units;
        }
        let change = Self {
            tag,
            key,
            now: None,
            deed,
            definition,
            units: exact(units),
            takes: Span::default(),
            left: exact(left),
            alone: 0,
            at: micros(claim.at),
            until: exact(micros_up(claim.until)),
            mark: exact(claim.detail),
            request: exact(claim.detail),
            place: 0,
        };
        Some(change.in_its_terms(tier, claim))
    }

    /// Gives back all that an ask was charged.
    pub(super) fn undo(ask: &Ask, outcome: &Outcome, wait: u64) -> Vec<Self> {
        let decided = micros(outcome.decided_at.unwrap_or(0));
        let undo = |(part, state): (&Part, &TierState)| {
            let definition = part.definition;
            let lease = Lease { tag: ask.tag.clone(), key: part.key.clone(), request: ask.request, definition };
            if definition.kind == Kind::InFlight {
                return lease.let_go(ask.now);
            }
            let takes = definition.takes();
            let is_fraction = definition.kind == Kind::Bucket && !definition.is_late() && state.mark > 0;
            let until = decided + micros_up(state.reset) - u64::from(is_fraction);
            Self {
                units: definition.cost,
                takes,
                left: definition.cost,
                alone: takes.micros,
                at: decided + micros(wait),
                until: if definition.kind == Kind::Log { 0 } else { until },
                mark: if matches!(definition.kind, Kind::Bucket | Kind::Log) { state.mark } else { definition.cost },
                ..lease.change(Deed::GiveBack, ask.now)
            }
        };
        ask.parts.iter().zip(&outcome.tiers).filter(|(part, _)| part.definition.cost > 0).map(undo).collect()
    }

    pub(super) fn gives_back(&self) -> bool {
        self.deed == Deed::GiveBack
    }

    /// Of several it goes before those that it was built upon.
    pub(super) fn before(&self, other: &Self) -> Ordering {
        other.until.cmp(&self.until)
    }

    /// Whether nothing came back, since others had come after it: of a bucket
    /// that does not remember what was given back.
    pub(super) fn is_built_upon(&self, moved: &Moved) -> bool {
        let is_plain = self.definition.kind == Kind::Bucket && !self.definition.is_late();
        let tried = moved.done && moved.left < self.left;
        self.gives_back() && is_plain && tried && moved.stands == (self.until, self.mark)
    }

    /// Whether it was charged right before one that has come back.
    pub(super) fn is_next(&self, last: &Self, moved: &Moved) -> bool {
        self.key == last.key && (self.until, self.mark) == moved.stands
    }

    /// In the terms of its kind.
    fn in_its_terms(self, tier: &Tier, claim: &Claim) -> Self {
        match self.definition.kind {
            Kind::Bucket => {
                let rate = rate(tier);
                // A debt beyond all time is never paid back.
                let longest = Span { micros: super::number::LONGEST, parts: 0 };
                let takes = rate.time_for(self.units).unwrap_or(longest);
                let alone = rate.time_for(self.left).unwrap_or(longest).micros;
                let is_fraction = !self.definition.is_late() && claim.detail > 0;
                Self { takes, alone, until: self.until - u64::from(is_fraction && self.until > 0), ..self }
            }
            // A count that weighs upon a sliding window stands in its place.
            Kind::Sliding => Self { at: exact(claim.at), ..self },
            // How many units took the places of others.
            Kind::Log => Self { until: exact(claim.until), ..self },
            _ => self,
        }
    }

    fn row<'a>(&'a self, tables: &mut Tables<'a>) -> Row {
        let [counter, definition, set] = tables.place(&self.key, self.definition);
        let numbers = [
            self.units,
            self.takes.micros,
            self.takes.parts,
            self.left,
            self.alone,
            self.at,
            self.until,
            self.mark,
            self.request,
        ];
        let head = [Number::Is(self.deed as u64), Number::Is(counter), Number::Is(definition), Number::Set(set)];
        Row(head.into_iter().chain(numbers.map(Number::Is)).collect())
    }

    /// One call for changes of one slot and time.
    pub(super) fn call(changes: &[Self], instance: u64) -> Call {
        let mut tables = Tables::default();
        let rows: Vec<Row> = changes.iter().map(|change| change.row(&mut tables)).collect();
        let now = changes.first().and_then(|change| change.now);
        tables.finish(&CHANGE, Head { now, instance }, &rows)
    }

    /// Where the claims stand now, one for each change.
    pub(super) fn read(changes: &[Self], bytes: &[u8]) -> Result<Vec<Moved>, BackendError> {
        let mut reader = Reader::new(bytes)?;
        let read = |change: &Self| {
            let done = reader.unsigned()? == 1;
            let [left, at, until, mark] =
                [reader.unsigned()?, reader.unsigned()?, reader.unsigned()?, reader.unsigned()?];
            let is_fraction = change.definition.kind == Kind::Bucket && !change.definition.is_late() && mark > 0;
            let stands = (until, mark);
            let at = if change.definition.kind == Kind::Sliding { at } else { at.saturating_mul(1_000) };
            let until = match change.definition.kind {
                Kind::Log => until,
                _ => until.saturating_add(u64::from(is_fraction)).saturating_mul(1_000),
            };
            Ok(Moved { place: change.place, owes: change.deed == Deed::Owe, done, left, at, until, mark, stands })
        };
        changes.iter().map(read).collect()
    }
}

/// Where a claim stands after a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    place: usize,
    owes: bool,
    done: bool,
    left: u64,
    at: u64,
    until: u64,
    mark: u64,
    /// Its end and its mark, as the script says it.
    stands: (u64, u64),
}

impl Moved {
    /// Writes it down, where the claim is of it.
    pub(super) fn write(all: &[Self], receipt: &Receipt) {
        let mut place = 0;
        receipt.for_each(|_, _, owned| {
            if let Some(moved) = all.iter().find(|moved| moved.place == place && moved.done) {
                let left = if moved.owes { moved.left } else { owned.claim.units };
                owned.claim = Claim { units: left, at: moved.at, until: moved.until, detail: moved.mark };
            }
            place += 1;
        });
    }

    /// What came of a change is unknown: nothing more is given back.
    pub(super) fn forfeit(receipt: &Receipt) {
        receipt.for_each(|_, tier, owned| {
            if !tier.is_in_flight() {
                owned.claim.units = 0;
            }
        });
    }
}
