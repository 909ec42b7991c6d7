//! A clock that is set back: counts from the future decide nothing.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_copy_from_the_future_leaves_the_decision_to_the_store() {
    let quota = Quota::per_second(1_000);
    let policy = policy(quota, Consistency::Eventual, Duration::from_millis(100));
    let (context, mut store) = (context(false), Store::new(quota));
    let copies = Copies::new(1, (0, &Arc::new(Instances::new())), true, Duration::from_secs(1));
    let is_decided = |at| request(&policy, (1, at), |request, _| matches!(copies.take(request), Take::Decided(..)));
    for at in [START, START + 50 * MILLISECOND] {
        request(&policy, (1, at), |request, charge| {
            assert!(matches!(copies.take(request), Take::Ask));
            let counters = copies.want(&context, charge, |_| 0, at).unwrap();
            let batch = copies.next_batch(&(0, counters.hash_tag()), "rl").unwrap();
            copies.decided(counters.key, 1);
            copies.synced(&batch, (at, Instant::now()), &store.sync(0, &batch, at / 1_000));
        });
    }
    assert!(is_decided(START + 60 * MILLISECOND));
    assert!(is_decided(START - 900 * MILLISECOND), "a thread that was overtaken");
    assert!(!is_decided(START - 10 * SECOND));
    assert!(is_decided(START + 60 * MILLISECOND));
}
