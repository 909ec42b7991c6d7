use super::*;

fn of(costs: impl IntoIterator<Item = u64>) -> u64 {
    let class = Class::default();
    costs.into_iter().for_each(|cost| class.learn(cost));
    class.usual.load(Ordering::Relaxed)
}

#[test]
fn most_of_the_latest_cost_at_most_what_is_usual() {
    assert_eq!(of([]), u64::MAX);
    assert_eq!(of(1..=19), u64::MAX, "too few");
    assert_eq!(of(1..=20), 19);
    assert_eq!(of(1..=64), 61);
    // Three of the latest 64 are no longer usual, and older ones are forgotten.
    assert_eq!(of((0..1_000).map(|n| if n % 30 == 0 { 500 } else { 20 })), 20);
    assert_eq!(of([900; 200].into_iter().chain([4; 64])), 4);
}
