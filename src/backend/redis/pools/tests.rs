//! A model of the lease protocol: several instances, a store and a network that
//! delays and loses messages in any order, in virtual time. Whatever happens, no
//! window admits more than its limit, and no unit is used twice.

mod memory;
mod small;
mod terms;
mod windows;

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use smallvec::smallvec;
use tokio::time::Instant;

use super::{lease::Leased, pool::Pool, terms::Terms, *};
use crate::{
    backend::{
        AcquireRequest,
        redis::{
            plan::LeaseAsk,
            tests::{MILLISECOND, context, policy, request},
            wire::decode::ChargeReply,
        },
    },
    policy::Consistency,
    quota::{Algorithm, Quota},
};

const WINDOW: u64 = 1_000 * MILLISECOND;
const INTERVAL: u64 = 100 * MILLISECOND;
const LIMIT: u64 = 6;
const INSTANCES: usize = 3;

#[derive(Debug)]
struct NoGuard;

impl AskGuard for NoGuard {}

/// One request of the rule, as a charge set.
fn charge_set(algorithm: Algorithm) -> ChargeSet {
    let quota = Quota::new(LIMIT, Duration::from_nanos(WINDOW)).algorithm(algorithm);
    let policy = policy(quota, Consistency::Leased, Duration::from_nanos(INTERVAL));
    request(&policy, (1, 0), |request, _| ChargeSet::split(&context(true), request, 1).unwrap().0.pop().unwrap())
}

/// A fixed window, naively. Its clock is ahead of the instances' by `ahead`.
struct Store {
    ahead: u64,
    end: u64,
    count: u64,
    /// All units that were leased, less those that were given back.
    leased: u64,
    /// What each instance has leased: the number of the ask, the units, and the end of
    /// their window.
    records: [Vec<(u32, u64, u64)>; INSTANCES],
}

impl Store {
    fn lease(&mut self, now: u64, instance: usize, ask: &LeaseAsk) -> ChargeReply {
        let now = now + self.ahead;
        if now >= self.end {
            (self.end, self.count) = (now - now % WINDOW + WINDOW, 0);
        }
        let record = &mut self.records[instance];
        record.retain(|(number, _, end)| *number > ask.known && now < *end);
        let lost = record.extract_if(.., |(number, ..)| *number <= ask.lost).map(|(_, units, _)| units).sum::<u64>();
        let more = (ask.ahead + waiting(ask)).saturating_sub(lost).min(LIMIT - self.count);
        let admitted = lost + more;
        self.count += more;
        self.leased += more;
        if admitted > 0 {
            self.records[instance].push((ask.number, admitted, self.end));
        }
        let tiers = smallvec![[(self.end - now) / 1_000, LIMIT - self.count, 0]];
        ChargeReply { now: now / 1_000, admitted, when: 0, delaying: 0, tiers }
    }

    /// Units of the window that is open come back, others do not.
    fn refund(&mut self, now: u64, units: u64, end: u64) {
        if end == self.end && now + self.ahead < self.end {
            self.count -= units;
            self.leased -= units;
        }
    }
}

/// How many requests wait for it.
fn waiting(ask: &LeaseAsk) -> u64 {
    u64::from(!ask.is_background)
}

/// What a reply brings for the pool.
fn leased(set: &ChargeSet, ask: &LeaseAsk, reply: &ChargeReply, asked: u64) -> Leased {
    let (terms, tag) = Terms::shared(&mut Shared::default(), set, "rl", (ask.interval, 0));
    let units = reply.admitted.saturating_sub(waiting(ask));
    let reply = LastReply::new(terms, tag, reply);
    let expires = reply.expiry(ask.lasts, asked);
    let LeaseAsk { version, number, .. } = *ask;
    Leased { reply, version, number, is_refill: ask.is_refill(), units, first_slot: 0, asked, expires }
}

fn ask(now: u64, AskNumbers { own: number, known, lost }: AskNumbers, ahead: u64) -> LeaseAsk {
    LeaseAsk {
        pool: Fingerprint::from_u128(1),
        version: 1,
        ahead,
        lately: 0,
        is_background: true,
        asked: (now, Instant::now()),
        interval: INTERVAL,
        lasts: WINDOW,
        number,
        known,
        lost,
        guard: Arc::new(NoGuard),
    }
}

enum Message {
    Ask {
        instance: usize,
        ask: LeaseAsk,
    },
    /// One that its instance does not wait for any more.
    LateAsk {
        instance: usize,
        ask: LeaseAsk,
    },
    Reply {
        instance: usize,
        ask: LeaseAsk,
        reply: ChargeReply,
    },
    Refund {
        units: u64,
        end: u64,
    },
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take {
        instance: usize,
        cost: u64,
    },
    Deliver(usize),
    Lose(usize),
    /// The deadline of an ask passes before it arrives.
    TimeOut(usize),
    Advance(u64),
    Sweep(usize),
    /// An interval ends.
    Flush(usize),
    Reload(usize),
    Restart(usize),
    /// Another part of the last request rejects it.
    Undo,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let instance = 0..INSTANCES;
    let step = prop_oneof![
        20 => (instance.clone(), 1..3_u64).prop_map(|(instance, cost)| Step::Take { instance, cost }),
        20 => any::<usize>().prop_map(Step::Deliver),
        1 => any::<usize>().prop_map(Step::Lose),
        1 => any::<usize>().prop_map(Step::TimeOut),
        4 => prop_oneof![0..5_u64, 0..50_u64, 100..1_200_u64].prop_map(Step::Advance),
        2 => instance.clone().prop_map(Step::Sweep),
        6 => instance.clone().prop_map(Step::Flush),
        1 => instance.clone().prop_map(Step::Reload),
        1 => instance.prop_map(Step::Restart),
        3 => Just(Step::Undo),
    ];
    prop::collection::vec(step, 1..400)
}

struct Fleet {
    store: Store,
    set: ChargeSet,
    pools: Vec<(Pool, u64)>,
    /// What each instance sends at the end of an interval.
    scheduled: Vec<(Vec<LeaseAsk>, Vec<Message>)>,
    network: Vec<Message>,
    now: u64,
    used: u64,
    /// What was used in the store's open window, and its end.
    in_window: (u64, u64),
    last: Option<Last>,
}

/// What the last request took.
#[derive(Clone, Copy)]
struct Last {
    instance: usize,
    version: u64,
    cost: u64,
    expires: u64,
    window: u64,
}

impl Fleet {
    fn new(ahead: u64) -> Self {
        Self {
            store: Store { ahead, end: 0, count: 0, leased: 0, records: Default::default() },
            set: charge_set(Algorithm::FixedWindow),
            pools: (0..INSTANCES).map(|_| (Pool::default(), 1)).collect(),
            scheduled: (0..INSTANCES).map(|_| (Vec::new(), Vec::new())).collect(),
            network: Vec::new(),
            now: 5 * WINDOW,
            used: 0,
            in_window: (0, 0),
            last: None,
        }
    }

    fn give_back(&mut self, instance: usize, surplus: Option<Surplus>) {
        let Some(surplus) = surplus else { return };
        let end = surplus.window_end();
        self.scheduled[instance].1.push(Message::Refund { units: surplus.units(), end });
    }

    /// Sends what is scheduled. What is given back is sent first, but may arrive later.
    fn flush(&mut self, instance: usize) {
        let (asks, refunds) = std::mem::take(&mut self.scheduled[instance]);
        self.network.extend(refunds);
        for ask in asks {
            let now = self.now;
            match self.pools[instance].0.send(&ask, now) {
                Some(ahead) => {
                    let asked = (now, Instant::now());
                    self.network.push(Message::Ask { instance, ask: LeaseAsk { ahead, asked, ..ask } });
                }
                None => self.pools[instance].0.ended(ask.number, ask.is_refill()),
            }
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Take { instance, cost } => self.take(instance, cost),
            Step::Deliver(index) if !self.network.is_empty() => {
                let message = self.network.remove(index % self.network.len());
                self.deliver(message);
            }
            Step::Lose(index) if !self.network.is_empty() => {
                let message = self.network.remove(index % self.network.len());
                if let Message::Ask { instance, ask } | Message::Reply { instance, ask, .. } = message {
                    self.pools[instance].0.ended(ask.number, ask.is_refill());
                }
            }
            Step::TimeOut(index) if !self.network.is_empty() => {
                let at = index % self.network.len();
                if let Message::Ask { instance, ref ask } = self.network[at] {
                    self.pools[instance].0.ended(ask.number, ask.is_refill());
                    self.network[at] = Message::LateAsk { instance, ask: ask.clone() };
                }
            }
            Step::Deliver(_) | Step::Lose(_) | Step::TimeOut(_) => {}
            Step::Advance(milliseconds) => self.now += milliseconds * MILLISECOND,
            Step::Sweep(instance) => {
                let surplus = self.pools[instance].0.sweep(self.now, WINDOW);
                self.give_back(instance, surplus);
            }
            Step::Flush(instance) => self.flush(instance),
            Step::Reload(instance) => self.pools[instance].1 += 1,
            // What it has leased is lost, and what it had under way is not received.
            Step::Restart(instance) => {
                self.pools[instance] = (Pool::default(), 1);
                self.scheduled[instance] = Default::default();
                self.store.records[instance].clear();
                self.network.retain(|message| match message {
                    Message::Ask { instance: of, .. } | Message::Reply { instance: of, .. } => *of != instance,
                    Message::LateAsk { .. } | Message::Refund { .. } => true,
                });
                self.last = None;
            }
            Step::Undo => self.undo(),
        }
    }

    fn take(&mut self, instance: usize, cost: u64) {
        let (pool, version) = &mut self.pools[instance];
        let take = pool.take(*version, cost, self.now, INTERVAL);
        if let Some(refill) = take.refill {
            // What is scheduled is not sent any more.
            let scheduled = self.scheduled[instance].0.drain(..);
            scheduled.for_each(|ask| pool.ended(ask.number, ask.is_refill()));
            let numbers = pool.asked(self.now, INTERVAL, refill.is_urgent, MILLISECOND);
            let ask = LeaseAsk { version: *version, ..ask(self.now, numbers, refill.ahead) };
            match refill.is_urgent {
                true => self.network.push(Message::Ask { instance, ask }),
                false => self.scheduled[instance].0.push(ask),
            }
        } else if take.outcome.is_none() {
            // While a refill is under way, the request asks for itself.
            let scheduled = self.scheduled[instance].0.drain(..);
            scheduled.for_each(|ask| pool.ended(ask.number, ask.is_refill()));
            let numbers = pool.asked_alone();
            let ask = LeaseAsk { version: *version, is_background: false, ..ask(self.now, numbers, 0) };
            self.network.push(Message::Ask { instance, ask });
        }
        if take.outcome.is_some() {
            self.used += cost;
            let server = self.now + self.store.ahead;
            let end = server - server % WINDOW + WINDOW;
            let before = if self.in_window.1 == end { self.in_window.0 } else { 0 };
            self.in_window = (before + cost, end);
            let version = *version;
            self.last = Some(Last { instance, version, cost, expires: take.expires, window: end });
        }
        self.give_back(instance, take.surplus);
        if take.outcome.is_none() {
            // The store decides, and must know all that is free.
            let refunds = std::mem::take(&mut self.scheduled[instance].1);
            self.network.extend(refunds);
        }
    }

    /// The store leases all that is asked for.
    fn reply(&mut self, ask: &LeaseAsk, all: &mut u64) {
        *all += ask.ahead;
        let reply = ChargeReply {
            now: ask.asked.0 / 1_000,
            admitted: ask.ahead,
            when: 0,
            delaying: 0,
            tiers: smallvec![[0; 3]],
        };
        let surplus = self.pools[0].0.add(leased(&self.set, ask, &reply, ask.asked.0), self.now);
        self.pools[0].0.ended(ask.number, ask.is_refill());
        assert!(surplus.is_none(), "{surplus:?}");
    }

    /// The first instance takes a unit, and what it asks for arrives with its reply.
    fn serve(&mut self) {
        self.run(Step::Take { instance: 0, cost: 1 });
        self.run(Step::Flush(0));
        self.run(Step::Deliver(0));
        self.run(Step::Deliver(0));
    }

    fn undo(&mut self) {
        let Some(Last { instance, version, cost, expires, window }) = self.last.take() else { return };
        if self.pools[instance].0.put_back(version, cost, expires, self.now) {
            self.used -= cost;
            if self.in_window.1 == window {
                self.in_window.0 -= cost;
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Ask { instance, ask } => {
                let reply = self.store.lease(self.now, instance, &ask);
                self.network.push(Message::Reply { instance, ask, reply });
            }
            Message::LateAsk { instance, ask } => _ = self.store.lease(self.now, instance, &ask),
            Message::Reply { instance, ask, reply } => {
                self.used += waiting(&ask).min(reply.admitted);
                let leased = leased(&self.set, &ask, &reply, ask.asked.0);
                let surplus = self.pools[instance].0.add(leased, self.now);
                self.pools[instance].0.ended(ask.number, ask.is_refill());
                self.give_back(instance, surplus);
            }
            Message::Refund { units, end } => self.store.refund(self.now, units, end),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { ProptestConfig::default().cases.max(512) }))]

    #[test]
    fn no_schedule_admits_more_than_the_limit(steps in steps(), ahead in 0..2 * WINDOW) {
        let mut fleet = Fleet::new(ahead / 1_000 * 1_000);
        for step in steps {
            fleet.run(step);
            prop_assert!(fleet.in_window.0 <= LIMIT, "{} of {LIMIT} in a window", fleet.in_window.0);
            prop_assert!(fleet.used <= fleet.store.leased, "{} of {} leased units", fleet.used, fleet.store.leased);
        }
    }
}

/// Units whose reply was lost are leased again, once.
#[test]
fn what_a_lost_reply_brought_is_not_lost() {
    let mut fleet = Fleet::new(0);
    // The second one shows the demand.
    fleet.run(Step::Take { instance: 0, cost: 1 });
    fleet.run(Step::Take { instance: 0, cost: 1 });
    fleet.run(Step::Deliver(0));
    let leased = fleet.store.leased;
    assert!(leased > 0);
    fleet.run(Step::Lose(0));
    (0..100).for_each(|_| fleet.serve());
    assert_eq!((fleet.used, fleet.store.leased), (LIMIT, LIMIT));
}

/// The same if requests asked for themselves before and after the refill.
#[test]
fn what_several_lost_replies_brought_is_not_lost() {
    let mut fleet = Fleet::new(0);
    for _ in 0..3 {
        fleet.run(Step::Take { instance: 0, cost: 1 });
    }
    assert_eq!(fleet.network.len(), 3);
    for _ in 0..3 {
        fleet.run(Step::Deliver(0));
    }
    let leased = fleet.store.leased;
    assert!(leased >= 3, "{leased} units");
    for _ in 0..3 {
        fleet.run(Step::Lose(0));
    }
    (0..100).for_each(|_| fleet.serve());
    assert_eq!((fleet.used, fleet.store.leased), (LIMIT, LIMIT));
}

/// The same if another refill was scheduled meanwhile, and is needed at once.
#[test]
fn what_a_lost_reply_brought_is_not_lost_while_another_is_scheduled() {
    let mut fleet = Fleet::new(0);
    let take = |fleet: &mut Fleet| {
        fleet.run(Step::Take { instance: 0, cost: 1 });
        fleet.run(Step::Deliver(0));
        fleet.run(Step::Deliver(0));
    };
    let until_scheduled = |fleet: &mut Fleet| {
        let is_scheduled = (0..LIMIT).any(|_| {
            take(fleet);
            !fleet.scheduled[0].0.is_empty()
        });
        assert!(is_scheduled, "no refill is scheduled");
    };
    until_scheduled(&mut fleet);
    fleet.run(Step::Flush(0));
    fleet.run(Step::Deliver(0));
    fleet.run(Step::Lose(0));
    until_scheduled(&mut fleet);
    for _ in 0..100 {
        take(&mut fleet);
    }
    assert_eq!((fleet.used, fleet.store.leased), (LIMIT, LIMIT));
}

/// Without failures, one busy instance gets nearly all of the limit.
#[test]
fn a_busy_instance_uses_the_limit() {
    let mut fleet = Fleet::new(0);
    for _ in 0..1_000 {
        fleet.serve();
        fleet.now += MILLISECOND;
    }
    assert!(fleet.used > LIMIT * 9 / 10, "{} of {LIMIT}", fleet.used);
}

/// By whole steps of a [`Moment`](moment::Moment), which rounds.
#[test]
fn demand_rises_at_once_and_decays_slowly() {
    const INTERVAL: u64 = 1 << 27;
    let mut demand = demand::Demand::default();
    assert_eq!(demand.per_interval(10 * INTERVAL, INTERVAL), 0);
    demand.count(100);
    assert_eq!(demand.per_interval(10 * INTERVAL + 1, INTERVAL), 100, "within the interval");
    assert_eq!(demand.per_interval(11 * INTERVAL, INTERVAL), 100, "after it");
    let decayed = demand.per_interval(12 * INTERVAL, INTERVAL);
    assert!((85..=90).contains(&decayed), "{decayed}");
    assert_eq!(demand.per_interval(100 * INTERVAL, INTERVAL), 0);
}

/// A pool that is used steadily asks for a refill in each interval, and only then.
#[test]
fn a_pool_in_steady_use_never_runs_dry() {
    let mut fleet = Fleet::new(0);
    fleet.set = charge_set(Algorithm::TokenBucket);
    let (mut store, mut dry, mut sent) = (0_u64, 0, 0);
    for interval in 0..100_u64 {
        let step = INTERVAL / 13;
        for _ in 0..13 {
            let take = fleet.pools[0].0.take(1, 1, fleet.now, INTERVAL);
            dry += usize::from(take.outcome.is_none() && interval > 10);
            if let Some(refill) = take.refill {
                let pool = &mut fleet.pools[0].0;
                let numbers = pool.asked(fleet.now, INTERVAL, refill.is_urgent, MILLISECOND);
                let ask = ask(fleet.now, numbers, refill.ahead);
                match refill.is_urgent {
                    true => fleet.reply(&ask, &mut store),
                    false => fleet.scheduled[0].0.push(ask),
                }
            }
            fleet.now += step;
        }
        for scheduled in std::mem::take(&mut fleet.scheduled[0].0) {
            if let Some(ahead) = fleet.pools[0].0.send(&scheduled, fleet.now) {
                sent += usize::from(interval > 10);
                fleet.reply(&LeaseAsk { ahead, asked: (fleet.now, Instant::now()), ..scheduled }, &mut store);
            }
        }
    }
    assert_eq!((dry, sent), (0, 89));
    assert!(store < 13 * 100 * 11 / 10, "{store} units leased for 1300");
}

/// Whatever was leased in a window is used in it.
#[test]
fn refills_before_a_pool_is_empty_lose_nothing() {
    let mut fleet = Fleet::new(0);
    let (mut pool, now) = (Pool::default(), fleet.now);
    assert!(pool.take(1, 1, now, INTERVAL).outcome.is_none());
    let mut used = 0;
    for (number, units) in [(0, 3), (1, 2), (2, 1)] {
        let ask = ask(now, AskNumbers { own: number, known: number, lost: number }, units);
        let reply = fleet.store.lease(now, 0, &ask);
        let leased = leased(&fleet.set, &ask, &reply, now + u64::from(number));
        assert!(pool.add(leased, now).is_none());
        used += u64::from(pool.take(1, 1, now, INTERVAL).outcome.is_some());
    }
    while pool.take(1, 1, now, INTERVAL).outcome.is_some() {
        used += 1;
    }
    assert_eq!(used, LIMIT);
}

/// What is given back together is told to the store once.
#[test]
fn a_pool_is_at_rest_once_all_is_given_back() {
    let (mut pool, set, now) = (Pool::default(), charge_set(Algorithm::TokenBucket), 5 * WINDOW);
    pool.take(1, 1, now, INTERVAL);
    for (after, units) in [(0, 3), (WINDOW / 2, 2)] {
        let numbers = pool.asked(now + after, INTERVAL, true, MILLISECOND);
        let ask = ask(now + after, numbers, units);
        let tiers = smallvec![[0, 0, 0]];
        let reply = ChargeReply { now: 1, admitted: units, when: 0, delaying: 0, tiers };
        assert!(pool.add(leased(&set, &ask, &reply, now + after), now + after).is_none());
        pool.ended(ask.number, ask.is_refill());
    }
    // The first units have expired, and the others are too few.
    let take = pool.take(1, 3, now + WINDOW, INTERVAL);
    assert!(take.outcome.is_none());
    assert_eq!(take.surplus.unwrap().units(), 5);
    assert!(pool.is_changing(now + WINDOW), "the store is not told yet");
    pool.on_returned();
    assert!(!pool.is_changing(now + WINDOW));
}
