//! A fleet of copies and a naive store, in virtual time: what the fleet admits, and
//! what becomes of reports whose messages are lost, late or repeated.

mod counts;
mod exactly_once;
mod fall_back;
mod late_replies;
mod memory;
mod overshoot;
mod set_back;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, advance};

use super::{Copies, Take};
use crate::{
    backend::{
        Charge,
        redis::{
            instances::Instances,
            plan::{Counters, PlanContext, ReportOp, SentAt, SyncBatch},
            tests::{MILLISECOND, context, policy, request, request_of},
            wire::decode::{SyncReply, SyncedCounter},
        },
    },
    policy::{CompiledPolicy, Consistency},
    quota::{Algorithm, Quota},
};

const SECOND: u64 = 1_000 * MILLISECOND;
const START: u64 = 1_700_000_000 * SECOND;

/// One way of a message, in milliseconds.
const LATENCY: u64 = 1;

/// When a batch without a reply has failed, in milliseconds.
const DEADLINE: u64 = 50;

/// What the store counts of one key, naively: a window, or a bucket.
struct Store {
    quota: Quota,
    /// The end of the window, in microseconds, or when the bucket is full.
    ends: u64,
    count: u64,
    markers: HashMap<usize, u64>,
    /// By instance, when it reported last.
    fleet: HashMap<usize, u64>,
    /// All units that were ever charged.
    total: u64,
}

impl Store {
    fn new(quota: Quota) -> Self {
        Self { quota, ends: 0, count: 0, markers: HashMap::new(), fleet: HashMap::new(), total: 0 }
    }

    fn window(&self) -> u64 {
        u64::try_from(self.quota.window().as_micros()).unwrap()
    }

    fn is_bucket(&self) -> bool {
        self.quota.counted_by() == Algorithm::TokenBucket
    }

    fn per_unit(&self) -> u64 {
        self.window() / self.quota.limit()
    }

    fn open(&mut self, at: u64) {
        if !self.is_bucket() && at >= self.ends {
            (self.ends, self.count) = (at - at % self.window() + self.window(), 0);
        }
    }

    /// Decides one request of `cost` units exactly.
    fn decide(&mut self, cost: u64, now: u64) -> bool {
        self.open(now);
        let fits = match self.is_bucket() {
            true => self.ends.max(now) + cost * self.per_unit() <= now + self.quota.limit() * self.per_unit(),
            false => self.count + cost <= self.quota.limit(),
        };
        if fits {
            self.charge(cost, now, now);
        }
        fits
    }

    /// Charges units, whatever the limit is; a window carries what does not fit.
    fn charge(&mut self, units: u64, at: u64, now: u64) {
        self.total += units;
        if self.is_bucket() {
            self.ends = self.ends.max(at) + units * self.per_unit();
            return;
        }
        if now < self.ends && at < self.ends - self.window() || at - at % self.window() + self.window() <= now {
            return;
        }
        self.open(at);
        self.count += units;
        while self.count > self.quota.limit() {
            (self.ends, self.count) = (self.ends + self.window(), self.count - self.quota.limit());
        }
    }

    fn sync(&mut self, instance: usize, batch: &SyncBatch, now: u64) -> SyncReply {
        let is_repeat = self.markers.get(&instance).is_some_and(|last| batch.number <= *last);
        if !is_repeat {
            self.markers.insert(instance, batch.number);
        }
        self.fleet.insert(instance, now);
        self.fleet.retain(|_, at| *at + batch.lately >= now);
        let reply = |(_, report): (_, &crate::backend::redis::plan::Report)| {
            if !is_repeat && report.op == ReportOp::Charge && report.units > 0 {
                self.charge(report.units, (report.at / 1_000).min(now), now);
            }
            let numbers =
                if self.is_bucket() { [self.ends.saturating_sub(now), 0, 0] } else { [self.ends, self.count, 0] };
            SyncedCounter { instances: self.fleet.len() as u64, numbers }
        };
        SyncReply { now, counters: batch.reports().map(reply).collect() }
    }
}

fn copies(instance: u64) -> Copies {
    Copies::new(1, (instance, &Arc::new(Instances::new())), false, Duration::from_secs(1))
}

enum Message {
    Batch(usize, Arc<SyncBatch>, SentAt, bool),
    Reply(usize, Arc<SyncBatch>, SentAt, Option<SyncReply>),
    Exact(usize, Arc<Counters>, u64),
    Decided(usize, Arc<Counters>, u64, bool),
}

/// What becomes of the messages of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    RequestLost,
    ReplyLost,
    /// It arrives in time, and again much later.
    Repeated,
    /// It arrives after its sender has given up.
    Late,
}

struct Fleet {
    /// The units of a request.
    cost: u64,
    policy: Arc<CompiledPolicy>,
    context: PlanContext,
    store: Store,
    copies: Vec<Copies>,
    messages: BTreeMap<(u64, u64), Message>,
    sent: u64,
    /// Milliseconds since the start, and how far each clock is ahead.
    now: u64,
    ahead: Vec<u64>,
    /// When requests were admitted, in milliseconds, with how many.
    admitted: BTreeMap<u64, u64>,
    calls: u64,
    killed: usize,
    /// When each instance last asked, plus one.
    asked: Vec<u64>,
    faults: Box<dyn FnMut() -> Fault>,
}

impl Fleet {
    fn new(quota: Quota, interval: Duration, instances: usize) -> Self {
        Self {
            cost: 1,
            policy: policy(quota, Consistency::Eventual, interval),
            context: context(false),
            store: Store::new(quota),
            copies: (0..instances).map(|index| copies(index as u64)).collect(),
            messages: BTreeMap::new(),
            sent: 0,
            now: 0,
            // Up to 100 ms apart.
            ahead: (0..instances as u64).map(|index| index * 37 % 101).collect(),
            admitted: BTreeMap::new(),
            calls: 0,
            killed: 0,
            asked: vec![0; instances],
            faults: Box::new(|| Fault::None),
        }
    }

    /// The store's time, in microseconds.
    fn store_now(&self) -> u64 {
        START / 1_000 + self.now * 1_000
    }

    fn put(&mut self, after: u64, message: Message) {
        self.sent += 1;
        self.messages.insert((self.now + after, self.sent), message);
    }

    fn send_batches(&mut self, instance: usize) {
        for stream in self.copies[instance].waiting(Instant::now()) {
            self.send(instance, &stream);
        }
    }

    fn send(&mut self, instance: usize, stream: &super::StreamId) {
        let Some(batch) = self.copies[instance].next_batch(stream, "rl") else { return };
        self.calls += 1;
        let sent = (self.copies[instance].limiter_now(), Instant::now());
        let message = |replies| Message::Batch(instance, Arc::clone(&batch), sent, replies);
        let lost = Message::Reply(instance, Arc::clone(&batch), sent, None);
        match (self.faults)() {
            Fault::None => self.put(LATENCY, message(true)),
            Fault::RequestLost => self.put(DEADLINE, lost),
            Fault::ReplyLost => {
                self.put(LATENCY, message(false));
                self.put(DEADLINE, lost);
            }
            Fault::Repeated => {
                self.put(LATENCY, message(true));
                self.put(7 * DEADLINE, message(false));
            }
            Fault::Late => {
                self.put(DEADLINE, lost);
                self.put(DEADLINE + 2 * LATENCY, message(false));
            }
        }
    }

    fn request(&mut self, instance: usize) {
        let now = START + (self.now + self.ahead[instance]) * MILLISECOND;
        let copies = &self.copies[instance];
        let (take, wanted) = request(&self.policy, (self.cost, now), |request, charge| match copies.take(request) {
            Take::Ask => (Take::Ask, copies.want(&self.context, charge, |_| 0, now)),
            decided => (decided, None),
        });
        match take {
            Take::Decided(outcome, _) if outcome.is_admitted() => {
                *self.admitted.entry(self.now).or_default() += self.cost
            }
            Take::Decided(..) => {}
            Take::Ask => {
                let counters = wanted.unwrap();
                let stream = (0, counters.hash_tag());
                self.send(instance, &stream);
                // Requests that ask at the same time share a call.
                self.calls += u64::from(std::mem::replace(&mut self.asked[instance], self.now + 1) != self.now + 1);
                let after = self.copies[instance].last_number();
                self.put(LATENCY, Message::Exact(instance, counters, after));
            }
        }
    }

    fn deliver(&mut self) {
        let now = self.store_now();
        while let Some(first) = self.messages.first_entry().filter(|first| first.key().0 <= self.now) {
            match first.remove() {
                Message::Batch(instance, batch, sent, replies) => {
                    let reply = self.store.sync(instance, &batch, now);
                    if replies {
                        self.put(LATENCY, Message::Reply(instance, batch, sent, Some(reply)));
                    }
                }
                Message::Reply(instance, batch, sent, Some(reply)) => {
                    self.copies[instance].synced(&batch, sent, &reply);
                }
                Message::Reply(instance, batch, _, None) => self.copies[instance].failed(&batch),
                Message::Exact(instance, counters, after) => {
                    let is_admitted = self.store.decide(self.cost, now);
                    *self.admitted.entry(self.now).or_default() += if is_admitted { self.cost } else { 0 };
                    self.put(LATENCY, Message::Decided(instance, counters, after, is_admitted));
                }
                Message::Decided(instance, counters, after, is_admitted) => {
                    let now = START + (self.now + self.ahead[instance]) * MILLISECOND;
                    self.copies[instance].decided(counters.key, self.cost);
                    if is_admitted {
                        self.copies[instance].charged(&[(counters, self.cost)], now, after);
                    }
                }
            }
        }
    }

    /// One millisecond, in which each instance has so many requests.
    async fn step(&mut self, requests: &[u64]) {
        self.deliver();
        for (instance, count) in requests.iter().enumerate() {
            for _ in 0..*count {
                self.request(instance);
            }
            self.send_batches(instance);
        }
        advance(Duration::from_millis(1)).await;
        self.now += 1;
    }

    /// An instance is killed, with what it has not reported and what is under way to
    /// it, and starts again.
    fn kill(&mut self, instance: usize) {
        self.killed += 1;
        let name = (self.copies.len() + self.killed) as u64;
        self.copies[instance] = copies(name);
        self.messages.retain(|_, message| match message {
            Message::Batch(..) | Message::Exact(..) => true,
            Message::Reply(of, ..) | Message::Decided(of, ..) => *of != instance,
        });
        self.store.markers.remove(&instance);
    }

    fn admitted_in(&self, from: u64, to: u64) -> u64 {
        self.admitted.range(from..to).map(|(_, count)| count).sum()
    }
}

/// Another instance reports all that it has used in an interval right after this one has.
#[tokio::test(start_paused = true)]
async fn a_lump_of_reports_does_not_make_a_key_near_its_limit() {
    let quota = Quota::per_day(100_000).algorithm(Algorithm::FixedWindow);
    let mut fleet = Fleet::new(quota, Duration::from_secs(1), 1);
    for _ in 0..3_000 {
        fleet.step(&[1]).await;
    }
    for lump in [0, 2_000] {
        let now = fleet.store_now();
        fleet.store.charge(lump, now, now);
        assert_eq!(fleet.copies[0].make_all_due(), 1);
        for _ in 0..3 {
            fleet.step(&[1]).await;
        }
    }
    let before = fleet.calls;
    for _ in 0..3_000 {
        fleet.step(&[1]).await;
    }
    let made = fleet.calls - before;
    assert!(made <= 4, "{made} calls in three intervals");
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_rule_share_what_is_equal() {
    let quota = Quota::per_second(10).algorithm(Algorithm::FixedWindow);
    let fleet = Fleet::new(quota, Duration::from_millis(100), 1);
    let of = |tenant| {
        let want = |charge: &Charge<'_>| fleet.copies[0].want(&fleet.context, charge, |_| 0, START);
        request_of(tenant, &fleet.policy, (1, START), |_, charge| want(charge)).unwrap()
    };
    let (one, other) = (of("acme"), of("another"));
    assert!(Arc::ptr_eq(&one.shared, &other.shared));
    let names = |own: &Arc<Counters>| fleet.copies[0].next_batch(&(0, own.hash_tag()), "rl").map(|batch| batch.names());
    assert_eq!(names(&one).unwrap(), ["rl:all:{acme}:::fixed-window/1s", "rl:all:{another}:::fixed-window/1s"]);
}
