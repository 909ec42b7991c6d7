use super::super::*;
use crate::jitter::seeded::SeededJitter;

/// Requests of these costs in turn: what the sampled ones stand for, by cost, and how many
/// were sampled.
fn sample(costs: &[u64], requests: u64) -> (Vec<u64>, u64) {
    let _jitter = SeededJitter::new(1);
    let (sampler, mut charged, mut sampled) = (Sampler::default(), vec![0; costs.len()], 0);
    for (request, (index, cost)) in (1..=requests).zip(costs.iter().enumerate().cycle()) {
        if sampler.is_due(*cost) {
            charged[index] += sampler.take(*cost, request, 7);
            sampled += 1;
        }
    }
    (charged, sampled)
}

#[test]
fn the_first_requests_of_a_minute_are_all_sampled() {
    let (charged, sampled) = sample(&[1, 40, 7], 510);
    assert_eq!((charged, sampled), (vec![170, 6_800, 1_190], 510));
    assert_eq!(sample(&[1_000_000], 510), (vec![510_000_000], 510));
}

#[test]
fn of_many_requests_one_in_128_is_sampled_whatever_they_cost() {
    for cost in [1, 3, 5_000] {
        let (charged, sampled) = sample(&[cost], 1_000_000);
        let total: u64 = charged.iter().sum();
        assert!(total <= cost * 1_000_000 && total > cost * 999_000, "{total}");
        assert!((7_000..10_000).contains(&sampled), "{sampled} of {cost}");
    }
}

/// Callers that take turns, at any rhythm, meet the sampler alike.
#[test]
fn turns_are_not_mistaken_for_load() {
    for callers in [2, 63, 128, 255] {
        let (charged, _) = sample(&vec![1; callers], 4_000_000);
        let expected = 4_000_000 / callers as u64;
        let all_alike = charged.iter().all(|own| own.abs_diff(expected) < expected / 3);
        assert!(all_alike, "{callers} callers: {charged:?}");
    }
}

#[test]
fn dear_requests_count_by_their_cost() {
    // One in a hundred costs a thousand times as much.
    let mut costs = vec![1; 100];
    costs[50] = 1_000;
    let (charged, sampled) = sample(&costs, 1_000_000);
    let (dear, total): (u64, u64) = (charged[50], charged.iter().sum());
    #[allow(clippy::cast_precision_loss)]
    let part = dear as f64 / total as f64;
    assert!((0.88..0.97).contains(&part), "{part}, and {} would be exact", 1_000.0 / 1_099.0);
    assert!(sampled < 15_000, "{sampled}");
}

/// After one request that costs as much as all others, these are sampled as before.
#[test]
fn one_dear_request_hides_no_others() {
    let sampler = Sampler::default();
    let mut longest = (0, 0);
    for request in 1..=200_000_u64 {
        let cost = if request == 100_000 { 1_000_000_000 } else { 1 };
        if sampler.is_due(cost) {
            sampler.take(cost, request, 7);
            longest = (longest.0.max(request - longest.1), request);
        }
    }
    let longest = longest.0.max(200_000 - longest.1);
    assert!(longest < 2_000, "{longest}");
}
