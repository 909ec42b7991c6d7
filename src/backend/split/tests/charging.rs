use super::*;
use crate::{
    backend::Settlement,
    limiter::{Lease, Next},
    policy::Rule,
};

/// Decides a request that may wait; returns how long it does.
fn reserve(limiter: &RateLimiter, max_wait: Duration) -> Option<(Duration, Next)> {
    let mut decision = Decision::unlimited();
    let request = Descriptor::new("/").tenant("acme");
    let reservation = limiter.decide(&request, max_wait, &mut decision);
    decision.is_allowed().then(|| (decision.wait(), reservation))
}

fn waiting(quota: Quota) -> Policy {
    Policy::new().rule(Rule::new("waiting").tier(quota).max_wait(3_600 * SECOND))
}

/// Waiters are admitted in the windows in which their instance has a share, and
/// no window of the fleet exceeds the limit.
#[test]
fn waits_are_reserved_in_the_shares_of_later_windows() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        for (count, limit) in [(96, 10), (3, 10), (7, 7)] {
            if algorithm == Algorithm::SlidingWindow && limit < count {
                continue;
            }
            let fleet = Fleet::new(count, waiting(Quota::per_second(limit).algorithm(algorithm)));
            let mut windows = std::collections::BTreeMap::<u64, u64>::new();
            let mut reservations = Vec::new();
            for limiter in &fleet.limiters {
                let mut last = Duration::ZERO;
                for _ in 0..20 {
                    let (wait, reservation) = reserve(limiter, Duration::MAX).unwrap();
                    assert!(wait >= last, "{algorithm}: overtaken");
                    last = wait;
                    *windows.entry(wait.as_secs()).or_default() += 1;
                    reservations.push(reservation);
                }
            }
            let most = windows.values().max().unwrap();
            assert_eq!(*most, limit, "{algorithm}: {limit} over {count}: {windows:?}");
            let full = 20 * count / limit / 2;
            if algorithm == Algorithm::FixedWindow {
                assert!((0..full).all(|window| windows[&window] == limit), "{limit} over {count}: {windows:?}");
            }
        }
    }
}

#[test]
fn an_abandoned_wait_releases_its_reservation() {
    let fleet = Fleet::new(5, waiting(fixed(1)));
    let limiter = &fleet.limiters[3];
    let first = reserve(limiter, Duration::MAX).unwrap();
    let second = reserve(limiter, Duration::MAX).unwrap();
    assert_eq!(second.0 - first.0, 5 * SECOND);
    drop(second.1);
    assert_eq!(reserve(limiter, Duration::MAX).unwrap().0, second.0);
}

#[test]
fn smooth_windows_spread_the_share() {
    let rule = Rule::new("smooth").tier(fixed(20)).max_wait(10 * SECOND).smooth(true);
    let fleet = Fleet::new(4, Policy::new().rule(rule));
    for limiter in &fleet.limiters {
        let waits: Vec<_> = (0..10).map(|_| reserve(limiter, Duration::MAX).unwrap()).collect();
        let expected: Vec<_> = (0..10).map(|index| SECOND / 5 * index).collect();
        assert_eq!(waits.iter().map(|(wait, _)| *wait).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_leaky_bucket_queues_the_share_of_its_burst() {
    let quota = Quota::per_second(4).burst(8).algorithm(Algorithm::LeakyBucket);
    let fleet = Fleet::new(4, waiting(quota));
    for limiter in &fleet.limiters {
        let waits: Vec<_> = (0..4).map(|_| reserve(limiter, Duration::MAX)).collect();
        let waits: Vec<_> = waits.iter().map(|wait| wait.as_ref().map(|(wait, _)| *wait)).collect();
        assert_eq!(waits, [Some(Duration::ZERO), Some(SECOND), Some(2 * SECOND), None]);
    }
    // The whole queue holds one request, and so does that of each instance.
    let fleet = Fleet::new(10, waiting(Quota::per_second(1).burst(1).algorithm(Algorithm::LeakyBucket)));
    let waits: Vec<_> = (0..2).map(|_| reserve(&fleet.limiters[0], Duration::MAX).unwrap()).collect();
    assert_eq!(waits[1].0, 10 * SECOND);
}

/// Debts are paid off in full at the rate of the share, and refunds add what was
/// refunded and no more.
#[test]
fn debts_and_refunds_follow_the_share() {
    for algorithm in Algorithm::WINDOWED {
        for (count, limit) in [(3, 10), (5, 2)] {
            let quota = Quota::per_second(limit).algorithm(algorithm);
            let policy = Policy::new().rule(Rule::new("settled").tier(quota).settle(true));
            let fleet = Fleet::new(count, policy);
            let index = usize::from(algorithm == Algorithm::FixedWindow);
            let limiter = &fleet.limiters[index];
            let mut admitted = 0;
            let hold = (0..10).find_map(|_| {
                let hold = take(limiter);
                if hold.is_none() {
                    fleet.pass(SECOND);
                }
                hold
            });
            let hold = hold.unwrap_or_else(|| panic!("{algorithm}: {limit} over {count}"));
            admitted += 1;
            hold.settle("requests", Settlement::Add(20));
            admitted += 20;
            hold.settle("requests", Settlement::GiveBack(7));
            admitted -= 7;
            let seconds = 60;
            let ticks = 10 * seconds;
            for _ in 0..ticks {
                fleet.pass(SECOND / 10);
                admitted += std::iter::from_fn(|| take(limiter)).count() as u64;
            }
            let stays_the_same =
                matches!(algorithm, Algorithm::AnchoredWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog);
            let most = match stays_the_same {
                true => limit.div_ceil(count) * (seconds + 2),
                false => (limit * (seconds + 2)).div_ceil(count) + 2,
            };
            assert!(admitted <= most, "{algorithm}: {admitted} of {most}, {limit} over {count}");
            assert!(admitted + 12 >= limit * seconds * 9 / count / 10, "{algorithm}: {admitted}, {limit} over {count}");
        }
    }
}

fn take(limiter: &RateLimiter) -> Option<std::sync::Arc<Lease>> {
    let mut decision = Decision::unlimited();
    let request = Descriptor::new("/").tenant("acme");
    let Next::Done(lease) = limiter.decide(&request, Duration::ZERO, &mut decision) else { return None };
    lease
}

#[test]
fn concurrency_limits_are_shared() {
    let fleet = Fleet::new(4, Quota::concurrent(6));
    let mut leases: Vec<Vec<_>> =
        fleet.limiters.iter().map(|limiter| std::iter::from_fn(|| take(limiter)).collect()).collect();
    assert_eq!(leases.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1, 1]);
    fleet.resize(6);
    leases[0].pop();
    assert!(take(&fleet.limiters[0]).is_none(), "one is in flight, which is its share by now");
    leases[0].pop();
    assert!(take(&fleet.limiters[0]).is_some());
}

#[test]
fn tiers_are_decided_together() {
    let rule = Rule::new("both").tier(fixed(10)).tier(Quota::per_minute(60).burst(30));
    let fleet = Fleet::new(5, Policy::new().rule(rule));
    assert_eq!(fleet.drain(), [2; 5]);
    let rejected = ask(&fleet.limiters[0], 1);
    let left: Vec<_> = rejected.tiers().iter().map(|tier| (tier.limit(), tier.remaining())).collect();
    assert_eq!(left, [(10, 0), (60, 4)]);
}

#[cfg(feature = "gossip")]
#[test]
fn what_is_refused_is_counted_for_the_rule_that_refuses_it() {
    use crate::{
        backend::{
            memory::MAX_KEYS,
            split::{machines::ShareMachines, rule_shares::for_all_rules},
        },
        policy::Dimension,
    };

    let (leave, _) = tokio::sync::mpsc::channel(1);
    let (machines, clock) = (std::sync::Arc::new(ShareMachines::by_demand(leave)), Hand::new());
    machines.set(&for_all_rules(Share::new(0, 1).unwrap()), clock.now().as_nanos() - 1);
    let rule = |id: &str, limit| {
        let quota = |window| Quota::new(limit, window).algorithm(Algorithm::SlidingLog);
        Rule::new(id).tier(quota(SECOND)).tier(quota(SECOND * 60)).per([Dimension::Tenant])
    };
    let policy = Policy::new().rule(rule("both-tiers-full", 1)).rule(rule("wide", 1_000));
    let backend = Split::with(std::sync::Arc::clone(&machines), MAX_KEYS);
    let limiter = RateLimiter::builder().policy(policy).backend(backend).clock(clock.clone()).build().unwrap();
    clock.advance(SECOND * 60);
    let verdicts = [(); 3].map(|()| limiter.try_check(&Descriptor::new("/").tenant("acme")).unwrap().is_allowed());
    assert_eq!(verdicts, [true, false, false]);
    let [_, refused] = machines.take_asked();
    let refused: Vec<_> = refused.iter().map(|(subject, units)| (&*subject.rule, *units)).collect();
    assert_eq!(refused, [("both-tiers-full", 2)]);
}
