//! The middle floor of the Redis backend: the Lua scripts, calls of them as bytes, and their
//! replies read back. It does no I/O.
//!
//! The head comment of each script in `scripts/` states KEYS, ARGV and the reply. Of the
//! script that decides, which has several parts, that is the head of `decide.lua`. The
//! algorithms are in `state.lua` (what is stored, and what is left), `charge.lua`, `debt.lua`
//! and `refund.lua`. `fast.lua` repeats the simple ones for speed.
//!
//! One script makes changes, leases units ahead of demand, and decides requests. A call pays
//! for everything that its script defines, so the parts that few calls need are defined only
//! where they are needed.
//!
//! Invariant: this file agrees with the head comments of `scripts/*.lua`, number by number. A
//! reply that cannot be read is an error for every request that it answers; no request is
//! admitted by default.

use std::{collections::HashMap, iter, sync::OnceLock};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::{
    algorithm::{Claim, QuotaStatus},
    backend::{
        Outcome, OutcomeKind, TierState, TierStates,
        redis::plan::{Change, ChargeSet, Definition, LeaseAsk, Span},
    },
    error::{BackendError, BackendErrorKind},
    quota::Algorithm,
};

/// A script, known to servers by its hash.
pub(crate) struct Script {
    pub(crate) text: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, hash: OnceLock::new() }
    }

    pub(crate) fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(self.text).get_hash().into())
    }

    /// Tells a server the text.
    pub(crate) fn load(&self) -> redis::Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(self.text);
        load
    }
}

/// Makes changes, leases units, and decides batches of requests. Every new connection loads
/// it, and a probe of the circuit breaker runs it.
pub(crate) static DECIDE: Script = Script::new(concat!(
    include_str!("scripts/input.lua"),
    include_str!("scripts/fast.lua"),
    include_str!("scripts/state.lua"),
    include_str!("scripts/charge.lua"),
    "local change_next, lease_next, check_dataset\nif changes > 0 then\n",
    include_str!("scripts/debt.lua"),
    include_str!("scripts/refund.lua"),
    "end\nif leases > 0 then\n",
    include_str!("scripts/lease.lua"),
    "end\nif ARGV[2] then\n",
    include_str!("scripts/dataset.lua"),
    "end\n",
    include_str!("scripts/decide.lua")
));

/// Publishes cooldowns. Rare, so it is loaded on first use.
pub(crate) static PUBLISH_COOLDOWNS: Script = Script::new(include_str!("scripts/publish_cooldowns.lua"));

/// Reads the cooldowns in force. Rare, so it is loaded on first use.
pub(crate) static READ_COOLDOWNS: Script = Script::new(include_str!("scripts/read_cooldowns.lua"));

/// One call of a script. All its keys are in one hash slot of a cluster.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) by_hash: redis::Cmd,
}

impl Call {
    /// One call for changes and charge sets of one hash slot and time, each set with how many
    /// requests it is for, those that lease first.
    pub(crate) fn decide<'a>(
        changes: impl Iterator<Item = &'a Change>,
        sets: impl Iterator<Item = (&'a ChargeSet, usize)>,
        head: CallHead<'_>,
        check: Option<&'a DatasetCheck>,
    ) -> Self {
        let mut encoder = CallEncoder { check, ..CallEncoder::default() };
        changes.for_each(|change| encoder.change(change));
        for (set, count) in sets {
            match &set.lease {
                Some(ask) => encoder.lease(set, ask, head),
                None => encoder.charge(set, count),
            }
        }
        encoder.finish(head)
    }

    /// A call that decides nothing: it shows whether scripts run, and may check the dataset.
    pub(crate) fn probe(check: Option<&DatasetCheck>) -> Self {
        Self::decide([].iter(), [].into_iter(), CallHead::default(), check)
    }

    /// `count` is the number of keys.
    pub(crate) fn new<'k>(
        script: &'static Script,
        keys: impl IntoIterator<Item = &'k str>,
        count: usize,
        arguments: impl IntoIterator<Item = &'k [u8]>,
    ) -> Self {
        let mut by_hash = redis::cmd("EVALSHA");
        by_hash.arg(script.hash()).arg(count);
        for key in keys {
            by_hash.arg(key);
        }
        for argument in arguments {
            by_hash.arg(argument);
        }
        Self { script, by_hash }
    }

    /// The name of a key, by its number from 1.
    pub(crate) fn key(&self, number: u64) -> Option<&str> {
        let at = usize::try_from(number).ok()?.checked_add(2)?;
        let Some(redis::Arg::Simple(key)) = self.by_hash.args_iter().nth(at) else { return None };
        std::str::from_utf8(key).ok()
    }
}

/// The most keys in a call. The first request is always in.
pub(crate) const MAX_KEYS: usize = 2_000;

/// How many keys a change needs at most: its counter, and the sorted set.
pub(crate) const KEYS_OF_CHANGE: usize = 2;

/// How long the store keeps a counter beyond its use at least, in microseconds: up to twice
/// that.
const RETENTION: u64 = 10_000_000;

/// The same where the limiter's clock decides: it may stand still.
const RETENTION_BY_LIMITER: u64 = 3_600_000_000;

/// How many keys a charge set needs at most: its counters, and their sorted sets; or if it
/// is leased the sets of instances, and the record of its lease.
pub(crate) fn max_keys(set: &ChargeSet) -> usize {
    if set.lease.is_some() { 1 + 2 * set.tiers.len() } else { 2 * set.tiers.len() }
}

/// What the head of every call says.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallHead<'a> {
    /// In microseconds since the Unix epoch; `None` is the server's time.
    pub(crate) now: Option<u64>,
    /// Identifies this process.
    pub(crate) instance: u64,
    /// The latest time that the server's clock has had, if it was set back since;
    /// else 0. In microseconds since the Unix epoch.
    pub(crate) latest: u64,
    /// The prefix of all keys.
    pub(crate) prefix: &'a str,
}

/// A check of what identifies the dataset, beside what a call does.
#[derive(Debug)]
pub(crate) struct DatasetCheck {
    /// The key that stores it.
    pub(crate) key: String,
    /// An id for a dataset that has none.
    pub(crate) id: String,
}

type Map<K, V> = HashMap<K, V, RandomState>;

/// Names each counter and each definition once, however many requests use it.
#[derive(Debug, Default)]
struct CallEncoder<'a> {
    /// The numbers of each counter and of its sorted set.
    numbers: Map<&'a str, [u64; 2]>,
    counters: Vec<&'a str>,
    /// Other keys, which follow those of the counters.
    others: Vec<String>,
    definition_numbers: Map<Definition, u64>,
    definitions: Vec<Definition>,
    /// What follows the definitions, and of how many changes and leases.
    body: Vec<u64>,
    changes: u64,
    leases: u64,
    check: Option<&'a DatasetCheck>,
}

impl<'a> CallEncoder<'a> {
    /// The numbers of a counter, a definition and a sorted set, each from 1;
    /// 0 where the counter has no sorted set.
    fn add(&mut self, key: &'a str, definition: Definition) {
        let [counter, sorted_set] = *self.numbers.entry(key).or_insert_with(|| {
            self.counters.push(key);
            // Entries that end one by one are in a sorted set beside the counter.
            let has_set = matches!(definition.algorithm, Algorithm::SlidingLog | Algorithm::Concurrency);
            self.others.extend(has_set.then(|| format!("{key}:set")));
            [self.counters.len() as u64, if has_set { self.others.len() as u64 } else { 0 }]
        });
        let definition = *self.definition_numbers.entry(definition).or_insert_with(|| {
            self.definitions.push(definition);
            self.definitions.len() as u64
        });
        self.body.extend([counter, definition, sorted_set]);
    }

    fn other(&mut self, key: String) -> u64 {
        self.others.push(key);
        self.others.len() as u64
    }

    fn change(&mut self, change: &'a Change) {
        self.changes += 1;
        self.body.push(change.op as u64);
        self.add(&change.charge.key, change.charge.definition);
        self.body.extend(change.numbers());
    }

    fn charge(&mut self, set: &'a ChargeSet, count: usize) {
        let count = if set.is_peek { 0 } else { count as u64 };
        self.body.extend([count, set.max_wait, set.not_before, set.request_id, set.tiers.len() as u64]);
        set.tiers.iter().for_each(|tier| self.add(&tier.key, tier.definition));
    }

    fn lease(&mut self, set: &'a ChargeSet, ask: &LeaseAsk, head: CallHead<'_>) {
        self.leases += 1;
        let recorded = set.record(ask, head.prefix, head.instance);
        let numbers = recorded.map_or([0; 3], |key| [ask.number, ask.known, self.other(key)]);
        self.body.extend(numbers);
        self.body.extend([ask.needed, ask.ahead, ask.lately(), set.tiers.len() as u64]);
        set.tiers.iter().for_each(|tier| self.add(&tier.key, tier.definition));
        for tier in &set.tiers {
            let instances = self.other(format!("{}:fleet", tier.key));
            self.body.push(instances);
        }
    }

    fn finish(self, head: CallHead<'_>) -> Call {
        let header = [
            head.now.unwrap_or(0),
            if head.now.is_some() { RETENTION_BY_LIMITER } else { RETENTION },
            head.instance,
            self.counters.len() as u64,
            self.definitions.len() as u64,
            head.latest,
            self.changes,
            self.leases,
        ];
        let definitions = self.definitions.iter().flat_map(Definition::numbers);
        let length = header.len() + 14 * self.definitions.len() + self.body.len();
        let mut argument = Vec::with_capacity(5 + 4 * length);
        // Writing to memory does not fail.
        let _ = rmp::encode::write_array_len(&mut argument, length as u32);
        for number in header.into_iter().chain(definitions).chain(self.body) {
            let _ = rmp::encode::write_uint(&mut argument, number);
        }
        let check = self.check.map(|check| check.key.as_str());
        let others = self.others.iter().map(String::as_str).chain(check);
        let count = self.counters.len() + self.others.len() + usize::from(self.check.is_some());
        let arguments = iter::once(&*argument).chain(self.check.map(|check| check.id.as_bytes()));
        Call::new(&DECIDE, self.counters.iter().copied().chain(others), count, arguments)
    }
}

/// What was replied to one call that decides: where the claim is after each change, and what
/// was replied about each charge set.
#[derive(Debug)]
pub(crate) struct Replies {
    pub(crate) claims: Vec<Result<Claim, BackendError>>,
    pub(crate) sets: Vec<Result<ChargeReply, BackendError>>,
}

impl Replies {
    /// The replies to changes and charge sets, in their order.
    pub(crate) fn read<'s>(
        changes: impl Iterator<Item = &'s Change>,
        sets: impl Iterator<Item = &'s ChargeSet>,
        bytes: &[u8],
        call: &Call,
    ) -> Result<Self, BackendError> {
        let mut reader = Reader::new(bytes)?;
        let now = reader.unsigned()?;
        let claims = changes.map(|change| reader.claim(change)).collect::<Result<_, _>>()?;
        let sets = sets.map(|set| {
            let admitted = reader.signed()?;
            if admitted < 0 {
                let key = reader.unsigned()?;
                return Ok(Err(foreign_key(call.key(key))));
            }
            let (when, delaying) = (reader.signed()?, reader.unsigned()?);
            let mut tiers = SmallVec::new();
            for _ in &set.tiers {
                tiers.push([reader.unsigned()?, reader.unsigned()?, reader.unsigned()?]);
            }
            Ok(Ok(ChargeReply { now, admitted: admitted.unsigned_abs(), when, delaying, tiers }))
        });
        let sets = sets.collect::<Result<_, BackendError>>()?;
        Ok(Self { claims, sets })
    }
}

/// Reads a MessagePack array of integers.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(mut bytes: &'a [u8]) -> Result<Self, BackendError> {
        rmp::decode::read_array_len(&mut bytes).map_err(|_| malformed_reply())?;
        Ok(Self(bytes))
    }

    /// Where the claim is after a change, if that was made.
    fn claim(&mut self, change: &Change) -> Result<Result<Claim, BackendError>, BackendError> {
        let is_done = self.unsigned()? == 1;
        let numbers = [self.unsigned()?, self.unsigned()?, self.unsigned()?, self.unsigned()?];
        Ok(if is_done { Ok(change.claim_after(numbers)) } else { Err(foreign_key(Some(&change.charge.key))) })
    }

    fn signed(&mut self) -> Result<i64, BackendError> {
        rmp::decode::read_int(&mut self.0).map_err(|_| malformed_reply())
    }

    fn unsigned(&mut self) -> Result<u64, BackendError> {
        rmp::decode::read_int(&mut self.0).map_err(|_| malformed_reply())
    }
}

pub(crate) fn malformed_reply() -> BackendError {
    BackendError::unavailable("the store's reply is malformed")
}

/// A key under the prefix that no version of this crate wrote, or another one.
fn foreign_key(key: Option<&str>) -> BackendError {
    // The tenant may be a secret.
    let key = key.unwrap_or_default();
    let tenant = key.find('{').and_then(|start| Some((start + 1, start + key[start..].find("}:")?)));
    let key = tenant.map_or_else(|| key.to_owned(), |(from, to)| format!("{}…{}", &key[..from], &key[to..]));
    let reason = format!("the key `{}` holds something that is no counter of this version", key.escape_debug());
    BackendError::new(BackendErrorKind::Misconfigured, reason)
}

/// What a script replied about one charge set.
#[derive(Clone, Debug)]
pub(crate) struct ChargeReply {
    /// Microseconds since the Unix epoch.
    pub(crate) now: u64,
    /// How many of the coalesced requests are admitted. Of a lease: its units.
    pub(crate) admitted: u64,
    /// Microseconds from now, or a negative number that says why there are
    /// none. Of a lease: the instances that have asked lately.
    pub(crate) when: i64,
    /// The tiers that delay the request, as bits.
    pub(crate) delaying: u64,
    /// Three numbers for each tier, as `standing` in `state.lua` has them.
    pub(crate) tiers: SmallVec<[[u64; 3]; 2]>,
}

impl ChargeReply {
    /// The outcome of the request at `index`, of `count` that were coalesced.
    pub(crate) fn outcome(&self, set: &ChargeSet, index: u64, count: usize) -> Outcome {
        let is_admitted = index < self.admitted;
        let admitted_later = if is_admitted { self.admitted - 1 - index } else { 0 };
        let has_time = !is_admitted || count == 1;
        let (when, delaying) = if has_time { (self.when, self.delaying) } else { (0, 0) };
        let definitions = set.tiers.iter().map(|tier| &tier.definition);
        let tiers = definitions.zip(self.tiers.iter().copied());
        let mut tiers: TierStates = statuses(tiers, admitted_later, set.request_id + index).collect();
        tiers.iter_mut().enumerate().for_each(|(index, status)| status.violated = delaying >> index & 1 == 1);
        let nanos = |micros: i64| micros.unsigned_abs().saturating_mul(1_000);
        let answer = match when {
            _ if is_admitted => OutcomeKind::Admitted { wait: nanos(when) },
            0.. => OutcomeKind::Rejected { retry_after: Some(nanos(when)) },
            -1 => OutcomeKind::Rejected { retry_after: None },
            _ => {
                let index = usize::try_from(-2 - when).unwrap_or(usize::MAX);
                let full = set.tiers.get(index);
                full.map_or(OutcomeKind::Rejected { retry_after: None }, |tier| OutcomeKind::Busy { key: tier.counter })
            }
        };
        Outcome { answer, tiers, decided_at: Some(self.now.saturating_mul(1_000)), later: 0 }
    }
}

/// The status of tiers, by the three numbers of each, before the `later` of the charged
/// units were taken. `request_id` names what is held in flight.
pub(crate) fn statuses<'a>(
    tiers: impl Iterator<Item = (&'a Definition, [u64; 3])>,
    later: u64,
    request_id: u64,
) -> impl Iterator<Item = TierState> {
    tiers.map(move |(definition, numbers)| {
        let QuotaStatus { remaining, reset } = quota_status(definition, numbers, later);
        let mark = if definition.holds_units() { request_id } else { numbers[2] };
        TierState { remaining, reset, violated: false, shared: false, mark, ahead: 0, age: 0 }
    })
}

/// What was left of a tier then.
fn quota_status(definition: &Definition, [first, second, _]: [u64; 3], later: u64) -> QuotaStatus {
    let units = later.saturating_mul(definition.cost);
    if !definition.algorithm.has_burst() {
        let remaining = second.saturating_add(units);
        return QuotaStatus { remaining, reset: first.saturating_mul(1_000) };
    }
    let rate = definition.rate;
    let span = rate.minus(Span { micros: first, parts: second }, units);
    let remaining = match definition.algorithm == Algorithm::LeakyBucket {
        true => u64::from(span == Span::default() && definition.capacity > 0),
        false => definition.capacity.saturating_sub(rate.units_in(span)),
    };
    QuotaStatus { remaining, reset: rate.nanos(span) }
}
