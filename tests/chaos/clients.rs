//! Promises of adaptive rates: clients that find the limit of an upstream, on virtual
//! time.

use std::time::Duration;

use tower_ratelimit::{AdaptiveRate, Quota, Rule};

use super::{
    Figure, Random,
    local::in_virtual_time,
    pause,
    upstream::{Upstream, call, limiter},
};

const LIMIT: u64 = 200;

fn starts_at(rate: u64) -> Rule {
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(rate));
    Rule::new("upstream").adaptive_rate(adapt)
}

fn seconds(from: u64, to: u64) -> std::ops::Range<usize> {
    from as usize..to as usize
}

/// The upstream admits nothing for some seconds. The time until nine tenths of its limit
/// are used again.
pub(crate) fn dip(mut random: Random) -> Figure {
    let (from, lasts) = (random.within(40, 60), random.within(1, 5));
    let (burst, round_trip) = (random.one_of(&[1, 20, 200]), random.millis(1, 100));
    let cools_down = random.within(0, 1) == 1;
    let upstream = in_virtual_time(move || async move {
        let limit = Quota::per_second(LIMIT).burst(burst);
        let (limiter, upstream) = (limiter(starts_at(20)), Upstream::new(limit, round_trip));
        let dips = async {
            pause(Duration::from_secs(from)).await;
            upstream.limiter.set_policy(Quota::per_hour(1)).unwrap();
            pause(Duration::from_secs(lasts)).await;
            upstream.limiter.set_policy(limit).unwrap();
        };
        tokio::join!(call(&limiter, &upstream, "acme", 64, from + lasts + 30, cools_down), dips);
        upstream
    });
    let end = from + lasts;
    let is_back = |after: &u64| upstream.rates(seconds(end + after, end + after + 3)).0 >= 0.9 * LIMIT as f64;
    let took = (0..27).find(is_back).map_or(f64::INFINITY, |after| after as f64);
    Figure { figure: took, bound: 15.0 }
}

/// Two clients find the limit of one upstream from very different rates, several times.
/// Which of them is rejected is chance, so the mean counts.
pub(crate) fn two(mut random: Random) -> Figure {
    const TIMES: u64 = 6;
    let larger = (0..TIMES).map(|_| {
        let (low, high) = (random.within(1, 10), random.within(500, 1_000));
        let (burst, round_trip) = (random.within(20, 200), random.millis(1, 100));
        let shares = in_virtual_time(move || async move {
            let upstream = Upstream::new(Quota::per_second(LIMIT).burst(burst), round_trip);
            let [one, other] = [high, low].map(|start| (limiter(starts_at(start)), upstream.of_another_client()));
            tokio::join!(call(&one.0, &one.1, "acme", 64, 60, false), call(&other.0, &other.1, "acme", 64, 60, false));
            [one.1, other.1].map(|seen| seen.rates(seconds(30, 60)).0)
        });
        100.0 * shares[0].max(shares[1]) / (shares[0] + shares[1])
    });
    Figure { figure: larger.sum::<f64>() / TIMES as f64, bound: 82.0 }
}
