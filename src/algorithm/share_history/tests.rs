use super::*;

#[test]
fn a_larger_stable_share_counts_after_a_whole_window() {
    let mut history = ShareHistory::new(Share::equal(0, 4));
    assert!(!history.change(Share::equal(0, 4), 5), "the same");
    assert!(history.change(Share::equal(0, 2), 100));
    let least = |history: &ShareHistory, now| history.least(100, now, 10);
    assert_eq!(least(&history, 109), (25, 110));
    assert_eq!(least(&history, 110), (50, u64::MAX));
    assert!(history.change(Share::equal(0, 10), 120));
    assert_eq!(least(&history, 121), (10, u64::MAX));
    for count in 1..100 {
        history.change(Share::equal(0, count), 120);
    }
    assert_eq!(history.past().len() + 1, MAX_REMEMBERED);
}
