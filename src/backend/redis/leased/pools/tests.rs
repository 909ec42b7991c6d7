//! The lease protocol, on a [model] of a fleet in virtual time. Whatever happens, no
//! window admits more than its limit, and no unit is used twice.

mod memory;
mod model;
mod pool_template;
mod small;
mod table;
mod windows;

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use smallvec::smallvec;
use tokio::time::Instant;

use self::model::{Fleet, INSTANCES, INTERVAL, LIMIT, Step, WINDOW, ask, charge_set, leased, steps};
use super::{
    super::{demand::Demand, lease::Leased, pool::Pool, pool_template::PoolTemplate},
    *,
};
use crate::{
    backend::{
        Request,
        redis::{
            plan::LeaseAsk,
            tests::{MILLISECOND, context, policy, request},
            wire::decode::ChargeReply,
        },
    },
    policy::Consistency,
    quota::{Algorithm, Quota},
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { ProptestConfig::default().cases.max(512) }))]

    #[test]
    fn no_schedule_admits_more_than_the_limit(steps in steps(), ahead in 0..2 * WINDOW) {
        let mut fleet = Fleet::new(ahead / 1_000 * 1_000);
        for step in steps {
            fleet.run(step);
            prop_assert!(fleet.in_window.0 <= LIMIT, "{} of {LIMIT} in a window", fleet.in_window.0);
            prop_assert!(fleet.used <= fleet.store.leased, "{} of {} leased units", fleet.used, fleet.store.leased);
            for instance in 0..INSTANCES {
                let is_at_rest = !fleet.pools[instance].0.is_changing();
                prop_assert!(!is_at_rest || !fleet.brings_units(instance), "{instance} expects nothing, and gets units");
            }
        }
    }
}

/// A request that the store rejects waits for them: they may be the last ones.
#[test]
fn a_pool_is_at_rest_once_all_refills_have_ended() {
    let mut fleet = Fleet::new(0);
    fleet.serve();
    fleet.run(Step::TakeTwo { instance: 0 });
    assert_eq!(fleet.network.len(), 2);
    fleet.run(Step::Deliver(0));
    fleet.run(Step::Deliver(1));
    assert!(fleet.brings_units(0) && fleet.pools[0].0.is_changing(), "the other refill is under way");
    fleet.run(Step::Deliver(0));
    fleet.run(Step::Deliver(0));
    assert!(fleet.network.is_empty() && !fleet.pools[0].0.is_changing());
}

/// The reply to a request that asks for itself brings them to the pool.
#[test]
fn a_pool_expects_what_a_lost_reply_brought() {
    let (mut pool, now) = (Pool::default(), 5 * WINDOW);
    let refill = pool.asked(now, INTERVAL, true, MILLISECOND);
    let beside = pool.asked_alone();
    assert!(!beside.is_refill(0), "the refill is not lost yet");
    for (number, is_refill) in [(refill.own, true), (beside.own, false)] {
        pool.ended(number, is_refill);
    }
    assert!(!pool.is_changing());
    let alone = pool.asked_alone();
    assert!(alone.is_refill(0) && pool.is_changing());
    pool.ended(alone.own, true);
    assert!(!pool.is_changing());
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
    let mut demand = Demand::default();
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
                let scheduled = fleet.scheduled[0].0.drain(..);
                scheduled.for_each(|ask| pool.ended(ask.number, ask.is_refill));
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
            match fleet.pools[0].0.send(&scheduled, fleet.now) {
                Some(ahead) => {
                    sent += usize::from(interval > 10);
                    fleet.reply(&LeaseAsk { ahead, asked: (fleet.now, Instant::now()), ..scheduled }, &mut store);
                }
                None => fleet.pools[0].0.ended(scheduled.number, scheduled.is_refill),
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
        pool.ended(ask.number, ask.is_refill);
    }
    // The first units have expired, and the others are too few.
    let take = pool.take(1, 3, now + WINDOW, INTERVAL);
    assert!(take.outcome.is_none());
    assert_eq!(take.surplus.unwrap().units(), 5);
    assert!(pool.is_changing(), "the store is not told yet");
    pool.on_returned();
    assert!(!pool.is_changing());
}
