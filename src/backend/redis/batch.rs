//! Several requests as one call of the script, and its answers.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::{
    number::Span,
    pack::{Reader, Writer},
    plan::{Ask, Definition, Part, Scale},
    script::{Call, DECIDE, PLAIN},
};
use crate::{
    backend::{Answer, Outcome, TierState},
    error::{BackendError, BackendErrorKind},
};

type Map<K, V> = HashMap<K, V, RandomState>;

/// So many keys a call, at most: a script takes no more at once. The first
/// request is always in.
pub(super) const MOST_KEYS: usize = 2_000;

/// What every call begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// Microseconds since the Unix epoch; `None` is the server's time.
    pub(super) now: Option<u64>,
    /// Tells this process from others.
    pub(super) instance: u64,
}

/// How much longer than it is needed, in microseconds, a counter is kept. So
/// long may its time to live be left as it is.
pub(super) const OUTLIVES: u64 = 10_000_000;

/// The same where the limiter's clock decides: it may stand still.
pub(super) const OUTLIVES_FROZEN: u64 = 3_600_000_000;

/// Counters, their sorted sets, and what is counted how, each once.
#[derive(Debug, Default)]
pub(super) struct Tables<'a> {
    counters: Map<&'a str, u64>,
    keys: Vec<&'a str>,
    /// By the counter.
    sets: Map<u64, u64>,
    set_keys: Vec<String>,
    definitions: Map<Definition, u64>,
    ordered: Vec<Definition>,
}

impl<'a> Tables<'a> {
    /// The numbers of a counter, its definition and its place among the sets;
    /// the first is 1, and 0 is none.
    pub(super) fn place(&mut self, key: &'a str, definition: Definition) -> [u64; 3] {
        let next = self.keys.len() as u64 + 1;
        let counter = *self.counters.entry(key).or_insert_with(|| {
            self.keys.push(key);
            next
        });
        let next = self.ordered.len() as u64 + 1;
        let number = *self.definitions.entry(definition).or_insert_with(|| {
            self.ordered.push(definition);
            next
        });
        let mut set = 0;
        if definition.kind.has_set() {
            let next = self.set_keys.len() as u64 + 1;
            set = *self.sets.entry(counter).or_insert_with(|| {
                self.set_keys.push(format!("{key}:set"));
                next
            });
        }
        [counter, number, set]
    }

    /// The call's keys, and its argument: the head, the definitions, and `rows`
    /// of numbers. A row's `sets` are places that are still to be counted from
    /// the first key on.
    pub(super) fn finish(self, script: &'static super::script::Script, head: Head, rows: &[Row]) -> Call {
        let counters = self.keys.len() as u64;
        let mut writer = Writer::new(6 + 13 * self.ordered.len() + rows.iter().map(|row| row.0.len()).sum::<usize>());
        writer.put(head.now.unwrap_or(0));
        writer.put(if head.now.is_some() { OUTLIVES_FROZEN } else { OUTLIVES });
        writer.put(u64::from(head.now.is_none()));
        writer.put(head.instance);
        writer.put(counters);
        writer.put(self.ordered.len() as u64);
        for number in self.ordered.iter().flat_map(Definition::numbers) {
            writer.put(number);
        }
        for Row(numbers) in rows {
            for number in numbers {
                writer.put(match number {
                    Number::Is(number) => *number,
                    Number::Set(0) => 0,
                    Number::Set(place) => counters + place,
                });
            }
        }
        let sets = self.set_keys.iter().map(String::as_str);
        Call::new(
            script,
            self.keys.iter().copied().chain(sets),
            counters + self.set_keys.len() as u64,
            &writer.into_bytes(),
        )
    }
}

/// What is said of one request or change.
#[derive(Debug, Default)]
pub(super) struct Row(pub(super) SmallVec<[Number; 14]>);

#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Is(u64),
    /// A place among the sorted sets.
    Set(u64),
}

/// Requests that go out together.
#[derive(Debug)]
pub(super) struct Batch {
    /// Each with how many there are that are charged the same.
    asks: Vec<(Ask, usize)>,
    /// Whether the plain script decides them.
    is_plain: bool,
}

/// What is said of one request; `None` where the plain script cannot tell.
pub(super) type Verdict = Result<Option<Outcome>, BackendError>;

impl Batch {
    /// Of requests that are all plain, or none of which is.
    pub(super) fn new(asks: Vec<(Ask, usize)>) -> Self {
        let is_plain = asks.first().is_some_and(|(ask, _)| ask.is_plain());
        Self { asks, is_plain }
    }

    /// How many keys there are, at most.
    pub(super) fn keys_of(ask: &Ask) -> usize {
        2 * ask.parts.len()
    }

    pub(super) fn call(&self, instance: u64) -> Call {
        let mut tables = Tables::default();
        let rows: Vec<Row> = self.asks.iter().map(|(ask, count)| self.row(ask, *count, &mut tables)).collect();
        let now = self.asks.first().and_then(|(ask, _)| ask.now);
        tables.finish(if self.is_plain { &PLAIN } else { &DECIDE }, Head { now, instance }, &rows)
    }

    fn row<'a>(&'a self, ask: &'a Ask, count: usize, tables: &mut Tables<'a>) -> Row {
        let (count, tiers) = (count as u64, ask.parts.len() as u64);
        let head = [count, ask.max_wait, ask.not_before, ask.request, tiers];
        let head = if self.is_plain { &[count, tiers][..] } else { &head[..] };
        let mut row = Row(head.iter().copied().map(Number::Is).collect());
        for part in &ask.parts {
            let [counter, definition, set] = tables.place(&part.key, part.definition);
            row.0.extend([Number::Is(counter), Number::Is(definition)]);
            row.0.extend((!self.is_plain).then_some(Number::Set(set)));
        }
        row
    }

    pub(super) fn into_asks(self) -> Vec<(Ask, usize)> {
        self.asks
    }

    /// One answer for each who asks, in their order.
    pub(super) fn read(&self, bytes: &[u8], call: &Call) -> Result<Vec<Verdict>, BackendError> {
        let mut reader = Reader::new(bytes)?;
        let now = reader.unsigned()?;
        let mut verdicts = Vec::with_capacity(self.asks.len());
        for (ask, count) in &self.asks {
            let admitted = reader.signed()?;
            if admitted < 0 {
                let key = reader.unsigned()?;
                let verdict = || if admitted == UNTOLD { Ok(None) } else { Err(something_else(call.key(key))) };
                verdicts.extend((0..*count).map(|_| verdict()));
                continue;
            }
            let reading = Reading::new(ask, now, admitted.unsigned_abs(), &mut reader)?;
            verdicts.extend((0..*count).map(|turn| Ok(Some(reading.outcome(ask, turn as u64, *count)))));
        }
        Ok(verdicts)
    }
}

/// What the plain script says of what it cannot tell.
pub(super) const UNTOLD: i64 = -2;

/// A key under our prefix that is none of ours.
pub(super) fn something_else(key: Option<&str>) -> BackendError {
    // The tenant may be a secret.
    let key = key.unwrap_or_default();
    let tenant = key.find('{').and_then(|start| Some((start + 1, start + key[start..].find("}:")?)));
    let key = tenant.map_or_else(|| key.to_owned(), |(from, to)| format!("{}…{}", &key[..from], &key[to..]));
    let reason = format!("the key `{}` holds something that is no counter of this version", key.escape_debug());
    BackendError::new(BackendErrorKind::Misconfigured, reason)
}

pub(super) fn cut_short() -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, "the store's answer makes no sense")
}

/// What the script says of a group.
pub(super) struct Reading {
    pub(super) now: u64,
    pub(super) admitted: u64,
    /// Microseconds, or why there are none.
    pub(super) when: i64,
    pub(super) waits_for: u64,
    pub(super) tiers: SmallVec<[[u64; 3]; 2]>,
}

impl Reading {
    fn new(ask: &Ask, now: u64, admitted: u64, reader: &mut Reader<'_>) -> Result<Self, BackendError> {
        let (when, waits_for) = (reader.signed()?, reader.unsigned()?);
        let mut tiers = SmallVec::new();
        for _ in &ask.parts {
            tiers.push([reader.unsigned()?, reader.unsigned()?, reader.unsigned()?]);
        }
        Ok(Self { now, admitted, when, waits_for, tiers })
    }

    /// That of the one whose turn it is, of so many.
    pub(super) fn outcome(&self, ask: &Ask, turn: u64, of: usize) -> Outcome {
        let is_admitted = turn < self.admitted;
        // How many of its like came after it.
        let later = if is_admitted { self.admitted - 1 - turn } else { 0 };
        let says_when = !is_admitted || of == 1;
        let (when, waits_for) = if says_when { (self.when, self.waits_for) } else { (0, 0) };
        let state = |(place, (part, numbers)): (usize, (&Part, &[u64; 3]))| {
            let mut state = status_of(part, *numbers, later);
            state.violated = waits_for >> place & 1 == 1;
            if part.definition.holds() {
                state.mark = ask.request;
            }
            state
        };
        let tiers = ask.parts.iter().zip(&self.tiers).enumerate().map(state).collect();
        let nanos = |micros: i64| micros.unsigned_abs().saturating_mul(1_000);
        let answer = match when {
            _ if is_admitted => Answer::Admitted { wait: nanos(when) },
            0.. => Answer::Rejected { retry_after: Some(nanos(when)) },
            -1 => Answer::Rejected { retry_after: None },
            _ => {
                let place = usize::try_from(-2 - when).unwrap_or(usize::MAX);
                let full = ask.in_flight.iter().find(|(part, _)| *part == place);
                full.map_or(Answer::Rejected { retry_after: None }, |(_, key)| Answer::Busy { key: *key })
            }
        };
        Outcome { answer, tiers, decided_at: Some(self.now.saturating_mul(1_000)) }
    }
}

/// Where a tier stood when `later` more were still to be charged.
fn status_of(part: &Part, [first, second, mark]: [u64; 3], later: u64) -> TierState {
    let units = later.saturating_mul(part.definition.cost);
    let state = |remaining, reset, mark| TierState { remaining, reset, violated: false, shared: false, mark, ahead: 0 };
    match part.scale {
        Scale::Bucket { rate, capacity, leaky } => {
            let span = rate.before(Span { micros: first, parts: second }, units);
            let remaining = match leaky {
                true => u64::from(span == Span::default() && capacity > 0),
                false => capacity.saturating_sub(rate.units_in(span)),
            };
            // Its end is known exactly by what is left of a microsecond.
            state(remaining, rate.nanos(span), if part.definition.is_late() { mark } else { span.parts })
        }
        Scale::Counted => state(second.saturating_add(units), first.saturating_mul(1_000), mark),
    }
}
