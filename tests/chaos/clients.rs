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
