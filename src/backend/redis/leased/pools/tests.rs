//! The lease protocol, on a [model] of a fleet in virtual time. Whatever happens, no
//! window admits more than its limit, and no unit is used twice.

mod memory;
mod model;
mod pool_template;
mod small;
mod windows;

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use smallvec::smallvec;

use self::model::{Fleet, INSTANCES, INTERVAL, LIMIT, Step, WINDOW, begin, charge_set, failing_steps, leased, steps};
use super::{
    super::{
        demand::Demand,
        lease::{Leased, PoolTemplate},
        pool::Pool,
    },
    *,
};
use crate::{
    backend::{
        Request,
        redis::tests::{MILLISECOND, context, policy, request},
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
                let is_at_rest = fleet.instances[instance].pool.under_way().is_none();
                prop_assert!(!is_at_rest || !fleet.brings_units(instance), "{instance} expects nothing, and gets units");
            }
        }
    }

    /// Whatever replies are lost, and whichever asks arrive when no request waits for them.
    #[test]
    fn no_loss_of_messages_loses_units(steps in failing_steps()) {
        let mut fleet = Fleet::new(0);
        for step in steps {
            fleet.run(step);
        }
        fleet.deliver_all();
        for _ in 0..5 {
            // Until then, a key that found the store empty is decided by it.
            fleet.now += INTERVAL + INTERVAL / 2;
            for instance in 0..INSTANCES {
                (0..LIMIT).for_each(|_| fleet.serve_instance(instance));
            }
        }
        prop_assert_eq!((fleet.used + fleet.refunds_lost, fleet.store.leased), (LIMIT, LIMIT));
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
    fleet.run(Step::Deliver(0));
    fleet.run(Step::Lose(0));
    (0..100).for_each(|_| fleet.serve());
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
    let set = charge_set(Algorithm::TokenBucket);
    let (mut pool, mut now) = (Pool::default(), 5 * WINDOW);
    let (mut store, mut dry, mut sent, mut number) = (0_u64, 0, 0, 0);
    // The store leases all that is asked for.
    let mut exchange = |pool: &mut Pool, now: u64, ahead: u64| {
        number += 1;
        store += ahead;
        let (ask, exchange) = begin(pool, now, (number, 0, ahead));
        let reply = ChargeReply { now: now / 1_000, admitted: ahead, when: 1, delaying: 0, tiers: smallvec![[0; 3]] };
        assert!(pool.add(leased(&set, &ask, &reply, now), now).is_none());
        pool.on_ended();
        exchange.end();
    };
    for interval in 0..100_u64 {
        let mut is_low = false;
        for _ in 0..13 {
            pool.demand.count(1);
            let (take, _) = pool.take(1, 1, now);
            is_low |= take.as_ref().is_some_and(|(_, is_low)| *is_low);
            dry += usize::from(take.is_none() && interval > 10);
            if take.is_none()
                && let Want::Ask(ahead) = pool.want(1, now, INTERVAL)
            {
                exchange(&mut pool, now, ahead);
            }
            now += INTERVAL / 13;
        }
        if let Some(ahead) = pool.want_more(now).filter(|_| is_low) {
            sent += usize::from(interval > 10);
            exchange(&mut pool, now, ahead);
        }
    }
    assert_eq!((dry, sent), (0, 89));
    assert!(store < 13 * 100 * 11 / 10, "{store} units leased for 1300");
}

/// Whatever was leased in a window is used in it.
#[test]
fn refills_before_a_pool_is_empty_lose_nothing() {
    let (set, mut pool, now) = (charge_set(Algorithm::FixedWindow), Pool::default(), 5 * WINDOW);
    assert!(pool.take(1, 1, now).0.is_none());
    let (mut used, mut left) = (0, LIMIT);
    for (number, units) in [(1, 3), (2, 2), (3, 1)] {
        left -= units;
        let (ask, _) = begin(&mut pool, now, (number, 0, units));
        let reply = ChargeReply {
            now: now / 1_000,
            admitted: units,
            when: 1,
            delaying: 0,
            tiers: smallvec![[WINDOW / 1_000, left, 0]],
        };
        let leased = leased(&set, &ask, &reply, now + number);
        assert!(pool.add(leased, now).is_none());
        used += u64::from(pool.take(1, 1, now).0.is_some());
    }
    while pool.take(1, 1, now).0.is_some() {
        used += 1;
    }
    assert_eq!(used, LIMIT);
}
