//! A reply that is late: what the store has charged meanwhile counts from its time.

use super::*;
use crate::backend::OutcomeKind;

/// Asks the store to charge units. Returns the report that is sent before, if any.
fn ask(copies: &Copies, policy: &CompiledPolicy, cost: u64, at: u64) -> (Arc<Counters>, Option<Arc<SyncBatch>>) {
    request(policy, (cost, at), |request, charge| {
        assert!(matches!(copies.take(request), Take::Ask));
        let counters = copies.want(&context(true), charge, |_| 0, at).unwrap();
        let batch = copies.next_batch(&(0, counters.hash_tag()), "rl");
        (counters, batch)
    })
}

#[tokio::test(start_paused = true)]
async fn units_that_were_charged_before_a_late_reply_count_from_their_times() {
    let quota = Quota::per_second(10);
    let policy = policy(quota, Consistency::Eventual, Duration::from_millis(100));
    let mut store = Store::new(quota);
    let copies = Copies::new(1, (0, &Arc::new(Instances::new())), true, Duration::from_secs(1));

    let (counters, first) = ask(&copies, &policy, 1, START);
    let first = first.unwrap();
    copies.decided(counters.key, 1);
    copies.synced(&first, (START, Instant::now()), &store.sync(0, &first, START / 1_000));

    // The store replies to the second report at once, and the reply is read last.
    let read = START + 10 * MILLISECOND;
    let (_, second) = ask(&copies, &policy, 1, read);
    let second = second.unwrap();
    let late = store.sync(0, &second, read / 1_000);
    copies.decided(counters.key, 1);

    // Charged at one time, whichever it is, they would leave the bucket empty for another one.
    let last = START + 500 * MILLISECOND;
    for (cost, at) in [(1, START + 20 * MILLISECOND), (10, last)] {
        assert!(ask(&copies, &policy, cost, at).1.is_none(), "the second report has no reply");
        assert!(store.decide(cost, at / 1_000));
        copies.decided(counters.key, cost);
        copies.charged(&[(Arc::clone(&counters), cost)], at, copies.last_number());
    }
    copies.synced(&second, (read, Instant::now()), &late);

    let answer = request(&policy, (1, last), |request, _| match copies.take(request) {
        Take::Decided(outcome, _) => outcome.answer,
        Take::Ask => panic!("the copy knows that the bucket is empty"),
    });
    assert_eq!(answer, OutcomeKind::Rejected { retry_after: Some(100 * MILLISECOND) });
}

#[tokio::test(start_paused = true)]
async fn however_many_there_are_no_unit_counts_as_charged_too_early() {
    let quota = Quota::per_second(1_000);
    let policy = policy(quota, Consistency::Eventual, Duration::from_millis(100));
    let mut store = Store::new(quota);
    let copies = Copies::new(1, (0, &Arc::new(Instances::new())), true, Duration::from_secs(1));
    let (counters, first) = ask(&copies, &policy, 1, START);
    let first = first.unwrap();
    let late = store.sync(0, &first, START / 1_000);
    copies.decided(counters.key, 1);

    // Each unit is back before the next one is charged; at last, all are charged.
    let times = || (1..=300).map(|number| START + number * 3 * MILLISECOND);
    let last = times().next_back().unwrap();
    for (cost, at) in times().map(|at| (1, at)).chain([(999, last)]) {
        copies.charged(&[(Arc::clone(&counters), cost)], at, copies.last_number());
    }
    copies.synced(&first, (START, Instant::now()), &late);
    let answer = request(&policy, (1, last), |request, _| match copies.take(request) {
        Take::Decided(outcome, _) => outcome.answer,
        Take::Ask => panic!("the copy knows that the bucket is empty"),
    });
    assert!(matches!(answer, OutcomeKind::Rejected { .. }), "{answer:?}");
}
