//! The fleet of the model: instances with a pool each, a store that counts naively, and
//! messages that arrive in any order, or not at all.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use smallvec::smallvec;
use tokio::time::Instant;

use super::super::super::{
    lease::{LastReply, Leased, ReturnedUnits, Templates},
    pool::{Exchange, Pool, Want},
};
use crate::{
    backend::redis::{
        plan::{ChargeSet, LeaseAsk},
        tests::{MILLISECOND, context, policy, request},
        wire::ChargeReply,
    },
    fingerprint::Fingerprint,
    policy::Consistency,
    quota::{Algorithm, Quota},
};

pub(super) const WINDOW: u64 = 1_000 * MILLISECOND;
pub(super) const INTERVAL: u64 = 100 * MILLISECOND;
pub(super) const LIMIT: u64 = 6;
pub(super) const INSTANCES: usize = 3;

#[derive(Debug)]
pub(super) struct NoGuard;

/// One request of the rule, as a charge set.
pub(super) fn charge_set(algorithm: Algorithm) -> ChargeSet {
    let quota = Quota::new(LIMIT, Duration::from_nanos(WINDOW)).algorithm(algorithm);
    let policy = policy(quota, Consistency::Leased, Duration::from_nanos(INTERVAL));
    request(&policy, (1, 0), |request, _| ChargeSet::split(&context(true), request, 1).unwrap().pop().unwrap())
}

/// A fixed window, naively. Its clock is ahead of the instances' by `ahead`.
pub(super) struct Store {
    ahead: u64,
    end: u64,
    count: u64,
    /// All units that were charged, less those that were given back.
    pub(super) leased: u64,
    /// What each instance has leased last: the number of the ask, the units, and the end of
    /// their window.
    records: [Option<(u64, u64, u64)>; INSTANCES],
}

impl Store {
    fn open(&mut self, now: u64) -> u64 {
        let now = now + self.ahead;
        if now >= self.end {
            (self.end, self.count) = (now - now % WINDOW + WINDOW, 0);
        }
        now
    }

    pub(super) fn lease(&mut self, now: u64, instance: usize, ask: &LeaseAsk) -> ChargeReply {
        let now = self.open(now);
        let record = self.records[instance];
        let is_late = record.is_some_and(|(number, ..)| number >= ask.number);
        let lost = record.filter(|(number, _, end)| !is_late && *number > ask.known && now < *end);
        let lost = lost.map_or(0, |(_, units, _)| units);
        let wanted = if is_late { 0 } else { (ask.needed + ask.ahead).saturating_sub(lost) };
        let more = wanted.min(LIMIT - self.count);
        self.count += more;
        self.leased += more;
        // Also where it leased nothing: an earlier ask may arrive later.
        if !is_late {
            self.records[instance] = Some((ask.number, lost + more, self.end));
        }
        let tiers = smallvec![[(self.end - now) / 1_000, LIMIT - self.count, 0]];
        ChargeReply { now: now / 1_000, admitted: lost + more, when: 1, delaying: 0, tiers }
    }

    /// A request that the store decides. Whether it is admitted.
    fn decide(&mut self, now: u64, cost: u64) -> bool {
        self.open(now);
        let is_admitted = self.count + cost <= LIMIT;
        if is_admitted {
            self.count += cost;
            self.leased += cost;
        }
        is_admitted
    }

    /// Units of the window that is open come back, others do not.
    fn refund(&mut self, now: u64, units: u64, end: u64) {
        if end == self.end && now + self.ahead < self.end {
            self.count -= units;
            self.leased -= units;
        }
    }
}

/// What a reply brings for the pool.
pub(super) fn leased(set: &ChargeSet, ask: &LeaseAsk, reply: &ChargeReply, asked: u64) -> Leased {
    let (template, tag) = Templates::default().share(set, "rl", ask.interval, 0);
    let units = reply.admitted;
    let reply = LastReply::new(template, tag, reply);
    let (expires, headroom) = (reply.expiry(WINDOW, asked), reply.headroom());
    Leased { version: ask.version, units, headroom, asked, expires, reply }
}

/// An ask of an exchange that begins now.
pub(super) fn begin(pool: &mut Pool, now: u64, (number, needed, ahead): (u64, u64, u64)) -> (LeaseAsk, Arc<Exchange>) {
    let exchange = pool.begin(number, needed);
    let ask = LeaseAsk {
        pool: Fingerprint::from_u128(1),
        version: pool.version,
        needed,
        ahead,
        asked: (now, Instant::now()),
        interval: INTERVAL,
        number,
        known: exchange.known,
        guard: Arc::new(NoGuard),
    };
    (ask, exchange)
}

pub(super) enum Message {
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
    /// A request that the store decides.
    Decide {
        cost: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Take {
        instance: usize,
        cost: u64,
    },
    /// Two threads find the pool dry before either of them asks.
    TakeTwo {
        instance: usize,
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
}

/// Requests and the network, which fails with a weight of `failures`.
fn network_step(failures: u32) -> impl Strategy<Value = Step> {
    let instance = 0..INSTANCES;
    prop_oneof![
        20 => (instance.clone(), 1..3_u64).prop_map(|(instance, cost)| Step::Take { instance, cost }),
        5 => instance.clone().prop_map(|instance| Step::TakeTwo { instance }),
        20 => any::<usize>().prop_map(Step::Deliver),
        failures => any::<usize>().prop_map(Step::Lose),
        failures => any::<usize>().prop_map(Step::TimeOut),
        6 => instance.prop_map(Step::Flush),
    ]
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let instance = 0..INSTANCES;
    let step = prop_oneof![
        53 => network_step(1),
        4 => prop_oneof![0..5_u64, 0..50_u64, 100..1_200_u64].prop_map(Step::Advance),
        2 => instance.clone().prop_map(Step::Sweep),
        1 => instance.clone().prop_map(Step::Reload),
        1 => instance.prop_map(Step::Restart),
    ];
    prop::collection::vec(step, 1..400)
}

/// Only the network fails, within one window.
pub(super) fn failing_steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(network_step(5), 1..60)
}

/// An instance: its pool, the version of its policy, and what waits for an exchange.
pub(super) struct Instance {
    pub(super) pool: Pool,
    version: u64,
    waiting: Vec<u64>,
    /// What it gives back at the end of an interval.
    refunds: Vec<Message>,
}

impl Instance {
    fn new() -> Self {
        Self { pool: Pool::default(), version: 1, waiting: Vec::new(), refunds: Vec::new() }
    }
}

pub(super) struct Fleet {
    pub(super) store: Store,
    pub(super) set: ChargeSet,
    pub(super) instances: Vec<Instance>,
    pub(super) network: Vec<Message>,
    pub(super) now: u64,
    pub(super) used: u64,
    /// Units that were given back by messages that were lost.
    pub(super) refunds_lost: u64,
    /// What was used in the store's open window, and its end.
    pub(super) in_window: (u64, u64),
    /// The number of the last exchange.
    number: u64,
}

impl Fleet {
    pub(super) fn new(ahead: u64) -> Self {
        Self {
            store: Store { ahead, end: 0, count: 0, leased: 0, records: Default::default() },
            set: charge_set(Algorithm::FixedWindow),
            instances: (0..INSTANCES).map(|_| Instance::new()).collect(),
            network: Vec::new(),
            now: 5 * WINDOW,
            used: 0,
            refunds_lost: 0,
            in_window: (0, 0),
            number: 0,
        }
    }

    fn give_back(&mut self, instance: usize, surplus: Option<ReturnedUnits>) {
        let Some(surplus) = surplus else { return };
        let end = (surplus.reply.now + surplus.reply.numbers.of(0)[0]) * 1_000;
        self.instances[instance].refunds.push(Message::Refund { units: surplus.units, end });
    }

    /// Sends what is scheduled. What is given back is sent first, but may arrive later.
    fn flush(&mut self, instance: usize) {
        let refunds = std::mem::take(&mut self.instances[instance].refunds);
        self.network.extend(refunds);
        if let Some(ahead) = self.instances[instance].pool.want_more(self.now) {
            self.ask(instance, 0, ahead);
        }
    }

    fn ask(&mut self, instance: usize, needed: u64, ahead: u64) {
        self.number += 1;
        let (ask, _) = begin(&mut self.instances[instance].pool, self.now, (self.number, needed, ahead));
        self.network.push(Message::Ask { instance, ask });
    }

    pub(super) fn run(&mut self, step: Step) {
        match step {
            Step::Take { instance, cost } => {
                if !self.take(instance, cost, true) {
                    self.want(instance, cost, cost);
                }
            }
            Step::TakeTwo { instance } => {
                let are_dry = [self.take(instance, 1, true), self.take(instance, 1, true)];
                are_dry.iter().filter(|took| !**took).for_each(|_| self.want(instance, 1, 1));
            }
            Step::Deliver(index) if !self.network.is_empty() => {
                let message = self.network.remove(index % self.network.len());
                self.deliver(message);
            }
            Step::Lose(index) if !self.network.is_empty() => {
                let message = self.network.remove(index % self.network.len());
                match message {
                    Message::Ask { instance, .. } | Message::Reply { instance, .. } => self.end(instance),
                    Message::Refund { units, .. } => self.refunds_lost += units,
                    Message::LateAsk { .. } | Message::Decide { .. } => {}
                }
            }
            Step::TimeOut(index) if !self.network.is_empty() => {
                let at = index % self.network.len();
                if let Message::Ask { instance, ref ask } = self.network[at] {
                    self.network[at] = Message::LateAsk { instance, ask: ask.clone() };
                    self.end(instance);
                }
            }
            Step::Deliver(_) | Step::Lose(_) | Step::TimeOut(_) => {}
            Step::Advance(milliseconds) => self.now += milliseconds * MILLISECOND,
            Step::Sweep(instance) => {
                let surplus = self.instances[instance].pool.sweep(self.now, WINDOW);
                self.give_back(instance, surplus);
            }
            Step::Flush(instance) => self.flush(instance),
            Step::Reload(instance) => self.instances[instance].version += 1,
            // What it has leased is lost, and what it had under way is not received.
            Step::Restart(instance) => {
                self.instances[instance] = Instance::new();
                self.store.records[instance] = None;
                self.network.retain(|message| match message {
                    Message::Ask { instance: of, .. } | Message::Reply { instance: of, .. } => *of != instance,
                    // To the store, it is another instance.
                    Message::LateAsk { instance: of, .. } => *of != instance,
                    Message::Refund { .. } | Message::Decide { .. } => true,
                });
            }
        }
    }

    fn record_use(&mut self, cost: u64) {
        self.used += cost;
        let server = self.now + self.store.ahead;
        let end = server - server % WINDOW + WINDOW;
        let before = if self.in_window.1 == end { self.in_window.0 } else { 0 };
        self.in_window = (before + cost, end);
    }

    /// Whether a request takes its units.
    fn take(&mut self, instance: usize, cost: u64, is_new: bool) -> bool {
        let Instance { pool, version, .. } = &mut self.instances[instance];
        let version = *version;
        if is_new {
            pool.demand.count(cost);
        }
        let (taken, surplus) = pool.take(version, cost, self.now);
        if taken.is_some() {
            self.record_use(cost);
        }
        self.give_back(instance, surplus);
        taken.is_some()
    }

    /// A request that found too few units waits, asks, or is decided by the store.
    fn want(&mut self, instance: usize, cost: u64, waiting: u64) {
        match self.instances[instance].pool.want(cost, self.now, INTERVAL) {
            Want::Wait(_) => self.instances[instance].waiting.push(cost),
            Want::Ask(ahead) => {
                self.instances[instance].waiting.push(cost);
                self.ask(instance, waiting.max(cost), ahead);
            }
            Want::Decide => self.decide(instance, cost),
        }
    }

    /// The store must know all that is free.
    fn decide(&mut self, instance: usize, cost: u64) {
        let surplus = self.instances[instance].pool.give_back(u64::MAX, self.now);
        self.give_back(instance, surplus);
        let refunds = std::mem::take(&mut self.instances[instance].refunds);
        self.network.extend(refunds);
        self.network.push(Message::Decide { cost });
    }

    /// An exchange of the instance has ended, with or without a reply.
    fn end(&mut self, instance: usize) {
        let Instance { pool, waiting, .. } = &mut self.instances[instance];
        let Some(exchange) = pool.under_way().cloned() else { return };
        pool.on_ended();
        exchange.end();
        for cost in std::mem::take(waiting) {
            match exchange.has_reply() {
                _ if self.take(instance, cost, false) => {}
                true => self.want(instance, cost, exchange.missing()),
                false => self.decide(instance, cost),
            }
        }
    }

    /// Whether messages are under way that bring units for an instance's pool.
    pub(super) fn brings_units(&self, instance: usize) -> bool {
        self.network.iter().any(|message| match message {
            Message::Ask { instance: of, ask } => *of == instance && ask.needed + ask.ahead > 0,
            Message::Reply { instance: of, reply, .. } => *of == instance && reply.admitted > 0,
            Message::LateAsk { .. } | Message::Refund { .. } | Message::Decide { .. } => false,
        })
    }

    /// The first instance takes a unit, and what it asks for arrives with its reply.
    pub(super) fn serve(&mut self) {
        self.serve_instance(0);
    }

    pub(super) fn serve_instance(&mut self, instance: usize) {
        self.run(Step::Take { instance, cost: 1 });
        self.run(Step::Flush(instance));
        self.deliver_all();
    }

    pub(super) fn deliver_all(&mut self) {
        while !self.network.is_empty() {
            self.run(Step::Deliver(0));
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
                let leased = leased(&self.set, &ask, &reply, ask.asked.0);
                let surplus = self.instances[instance].pool.add(leased, self.now);
                self.give_back(instance, surplus);
                self.end(instance);
            }
            Message::Refund { units, end } => self.store.refund(self.now, units, end),
            Message::Decide { cost } => {
                if self.store.decide(self.now, cost) {
                    self.record_use(cost);
                }
            }
        }
    }
}
