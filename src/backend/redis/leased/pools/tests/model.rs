//! The fleet of the model: instances with a pool each, a store that counts naively, and
//! messages that arrive in any order, or not at all.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use smallvec::smallvec;
use tokio::time::Instant;

use super::super::super::{
    in_flight_asks::AskNumbers,
    last_reply::LastReply,
    lease::Leased,
    pool::{Pool, Take},
    pool_template::{PoolTemplate, Shared},
    returned_units::ReturnedUnits,
};
use crate::{
    backend::redis::{
        plan::{AskGuard, ChargeSet, LeaseAsk},
        tests::{MILLISECOND, context, policy, request},
        wire::decode::ChargeReply,
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

impl AskGuard for NoGuard {}

/// One request of the rule, as a charge set.
pub(super) fn charge_set(algorithm: Algorithm) -> ChargeSet {
    let quota = Quota::new(LIMIT, Duration::from_nanos(WINDOW)).algorithm(algorithm);
    let policy = policy(quota, Consistency::Leased, Duration::from_nanos(INTERVAL));
    request(&policy, (1, 0), |request, _| ChargeSet::split(&context(true), request, 1).unwrap().0.pop().unwrap())
}

/// A fixed window, naively. Its clock is ahead of the instances' by `ahead`.
pub(super) struct Store {
    ahead: u64,
    end: u64,
    count: u64,
    /// All units that were leased, less those that were given back.
    pub(super) leased: u64,
    /// What each instance has leased: the number of the ask, the units, and the end of
    /// their window.
    records: [Vec<(u32, u64, u64)>; INSTANCES],
}

impl Store {
    pub(super) fn lease(&mut self, now: u64, instance: usize, ask: &LeaseAsk) -> ChargeReply {
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
pub(super) fn waiting(ask: &LeaseAsk) -> u64 {
    u64::from(!ask.is_background)
}

/// What a reply brings for the pool.
pub(super) fn leased(set: &ChargeSet, ask: &LeaseAsk, reply: &ChargeReply, asked: u64) -> Leased {
    let (template, tag) = PoolTemplate::shared(&mut Shared::default(), set, "rl", (ask.interval, 0));
    let units = reply.admitted.saturating_sub(waiting(ask));
    let reply = LastReply::new(template, tag, reply);
    let expires = reply.expiry(ask.lasts, asked);
    let LeaseAsk { version, number, .. } = *ask;
    Leased { reply, version, number, is_refill: ask.is_refill, units, first_slot: 0, asked, expires }
}

pub(super) fn ask(now: u64, numbers: AskNumbers, ahead: u64) -> LeaseAsk {
    let AskNumbers { own: number, known, lost } = numbers;
    LeaseAsk {
        pool: Fingerprint::from_u128(1),
        version: 1,
        ahead,
        is_refill: numbers.is_refill(ahead),
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
    /// Another part of the last request rejects it.
    Undo,
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let instance = 0..INSTANCES;
    let step = prop_oneof![
        20 => (instance.clone(), 1..3_u64).prop_map(|(instance, cost)| Step::Take { instance, cost }),
        5 => instance.clone().prop_map(|instance| Step::TakeTwo { instance }),
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

pub(super) struct Fleet {
    pub(super) store: Store,
    pub(super) set: ChargeSet,
    pub(super) pools: Vec<(Pool, u64)>,
    /// What each instance sends at the end of an interval.
    pub(super) scheduled: Vec<(Vec<LeaseAsk>, Vec<Message>)>,
    pub(super) network: Vec<Message>,
    pub(super) now: u64,
    pub(super) used: u64,
    /// What was used in the store's open window, and its end.
    pub(super) in_window: (u64, u64),
    last: Option<Last>,
}

/// What the last request took.
#[derive(Clone, Copy)]
pub(super) struct Last {
    instance: usize,
    version: u64,
    cost: u64,
    expires: u64,
    window: u64,
}

impl Fleet {
    pub(super) fn new(ahead: u64) -> Self {
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

    fn give_back(&mut self, instance: usize, surplus: Option<ReturnedUnits>) {
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
                None => self.pools[instance].0.ended(ask.number, ask.is_refill),
            }
        }
    }

    pub(super) fn run(&mut self, step: Step) {
        match step {
            Step::Take { instance, cost } => {
                let take = self.take(instance, cost);
                self.ask(instance, &take);
            }
            Step::TakeTwo { instance } => {
                let both = [self.take(instance, 1), self.take(instance, 1)];
                both.iter().for_each(|take| self.ask(instance, take));
            }
            Step::Deliver(index) if !self.network.is_empty() => {
                let message = self.network.remove(index % self.network.len());
                self.deliver(message);
            }
            Step::Lose(index) if !self.network.is_empty() => {
                let message = self.network.remove(index % self.network.len());
                if let Message::Ask { instance, ask } | Message::Reply { instance, ask, .. } = message {
                    self.pools[instance].0.ended(ask.number, ask.is_refill);
                }
            }
            Step::TimeOut(index) if !self.network.is_empty() => {
                let at = index % self.network.len();
                if let Message::Ask { instance, ref ask } = self.network[at] {
                    self.pools[instance].0.ended(ask.number, ask.is_refill);
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

    fn take(&mut self, instance: usize, cost: u64) -> Take {
        let (pool, version) = &mut self.pools[instance];
        let mut take = pool.take(*version, cost, self.now, INTERVAL);
        if take.outcome.is_some() {
            self.used += cost;
            let server = self.now + self.store.ahead;
            let end = server - server % WINDOW + WINDOW;
            let before = if self.in_window.1 == end { self.in_window.0 } else { 0 };
            self.in_window = (before + cost, end);
            let version = *version;
            self.last = Some(Last { instance, version, cost, expires: take.expires, window: end });
        }
        self.give_back(instance, take.surplus.take());
        take
    }

    /// Asks for what a request needs that has taken its units, or found too few.
    fn ask(&mut self, instance: usize, take: &Take) {
        let (pool, version) = &mut self.pools[instance];
        if let Some(refill) = take.refill {
            // What is scheduled is not sent any more.
            let scheduled = self.scheduled[instance].0.drain(..);
            scheduled.for_each(|ask| pool.ended(ask.number, ask.is_refill));
            let numbers = pool.asked(self.now, INTERVAL, refill.is_urgent, MILLISECOND);
            let ask = LeaseAsk { version: *version, ..ask(self.now, numbers, refill.ahead) };
            match refill.is_urgent {
                true => self.network.push(Message::Ask { instance, ask }),
                false => self.scheduled[instance].0.push(ask),
            }
        } else if take.outcome.is_none() {
            // While a refill is under way, the request asks for itself.
            let scheduled = self.scheduled[instance].0.drain(..);
            scheduled.for_each(|ask| pool.ended(ask.number, ask.is_refill));
            let numbers = pool.asked_alone();
            let ask = LeaseAsk { version: *version, is_background: false, ..ask(self.now, numbers, 0) };
            self.network.push(Message::Ask { instance, ask });
        }
        if take.outcome.is_none() {
            // The store decides, and must know all that is free.
            let refunds = std::mem::take(&mut self.scheduled[instance].1);
            self.network.extend(refunds);
        }
    }

    /// Whether messages are under way that bring units for an instance's pool.
    pub(super) fn brings_units(&self, instance: usize) -> bool {
        self.network.iter().any(|message| match message {
            Message::Ask { instance: of, ask } => *of == instance && ask.ahead > 0,
            Message::Reply { instance: of, ask, reply } => *of == instance && reply.admitted > waiting(ask),
            Message::LateAsk { .. } | Message::Refund { .. } => false,
        })
    }

    /// The store leases all that is asked for.
    pub(super) fn reply(&mut self, ask: &LeaseAsk, all: &mut u64) {
        *all += ask.ahead;
        let reply = ChargeReply {
            now: ask.asked.0 / 1_000,
            admitted: ask.ahead,
            when: 0,
            delaying: 0,
            tiers: smallvec![[0; 3]],
        };
        let surplus = self.pools[0].0.add(leased(&self.set, ask, &reply, ask.asked.0), self.now);
        self.pools[0].0.ended(ask.number, ask.is_refill);
        assert!(surplus.is_none(), "{surplus:?}");
    }

    /// The first instance takes a unit, and what it asks for arrives with its reply.
    pub(super) fn serve(&mut self) {
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
                self.pools[instance].0.ended(ask.number, ask.is_refill);
                self.give_back(instance, surplus);
            }
            Message::Refund { units, end } => self.store.refund(self.now, units, end),
        }
    }
}
