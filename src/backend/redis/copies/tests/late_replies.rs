//! A reply that is late: what was charged after the store read its counts is added, each
//! at its time.

use super::*;
use crate::backend::OutcomeKind;

/// Decides by the limiter's time, as the store of these tests does.
fn copies_and_store(quota: Quota) -> (Copies, Store) {
    (Copies::new(1, (0, &Arc::new(Instances::new())), true, Duration::from_secs(1)), Store::new(quota))
}

/// Asks the store to charge units. Returns the report that is sent before, if any.
fn ask(copies: &Copies, policy: &CompiledPolicy, cost: u64, at: u64) -> (Arc<Counters>, Option<Arc<SyncBatch>>) {
    request(policy, (cost, at), |request, charge| {
        assert!(matches!(copies.take(request), Take::Ask));
        let counters = copies.want(&context(true), charge, |_| 0, at).unwrap();
        let batch = copies.next_batch(&(0, counters.hash_tag()), "rl");
        (counters, batch)
    })
}

/// The answer that the copy gives by itself.
fn answer(copies: &Copies, policy: &CompiledPolicy, cost: u64, at: u64) -> OutcomeKind {
    request(policy, (cost, at), |request, _| match copies.take(request) {
        Take::Decided(outcome, _) => outcome.answer,
        Take::Ask => panic!("the store is asked"),
    })
}

#[tokio::test(start_paused = true)]
async fn units_that_were_charged_before_a_late_reply_count_from_their_times() {
    let quota = Quota::per_second(10);
    let policy = policy(quota, Consistency::Eventual, Duration::from_millis(100));
    let (copies, mut store) = copies_and_store(quota);

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

    // If all 11 counted from 10 ms, another would be admitted; from 500 ms, only in 200 ms.
    let last = START + 500 * MILLISECOND;
    for (cost, at) in [(1, START + 20 * MILLISECOND), (10, last)] {
        assert!(ask(&copies, &policy, cost, at).1.is_none(), "the second report has no reply");
        assert!(store.decide(cost, at / 1_000));
        copies.decided(counters.key, cost);
        copies.charged(&[(Arc::clone(&counters), cost)], at, copies.last_number());
    }
    copies.synced(&second, (read, Instant::now()), &late);
    let rejected = OutcomeKind::Rejected { retry_after: Some(100 * MILLISECOND) };
    assert_eq!(answer(&copies, &policy, 1, last), rejected);
}

#[tokio::test(start_paused = true)]
async fn however_many_times_there_are_units_count_little_later_and_never_earlier() {
    let quota = Quota::per_second(1_000);
    let policy = policy(quota, Consistency::Eventual, Duration::from_millis(100));
    let (copies, mut store) = copies_and_store(quota);
    let (counters, first) = ask(&copies, &policy, 1, START);
    let first = first.unwrap();
    let late = store.sync(0, &first, START / 1_000);
    copies.decided(counters.key, 1);

    // Each of 299 units is back before the next one is charged; at last, 1,000 are charged.
    let times = || (1..=300).map(|number| START + number * 3 * MILLISECOND);
    let last = times().next_back().unwrap();
    for (cost, at) in times().map(|at| (1, at)).chain([(999, last)]) {
        copies.charged(&[(Arc::clone(&counters), cost)], at, copies.last_number());
    }
    copies.synced(&first, (START, Instant::now()), &late);
    let OutcomeKind::Rejected { retry_after: Some(wait) } = answer(&copies, &policy, 1, last) else {
        panic!("the bucket is empty")
    };
    let late_by = (900 * MILLISECOND) / 32;
    assert!((MILLISECOND..=MILLISECOND + late_by).contains(&wait), "{wait} ns");
}

/// The first reply of a server shows how far its clock is ahead, and may be read last.
#[tokio::test(start_paused = true)]
async fn units_count_from_their_times_by_the_clock_of_the_store() {
    for skew in [20 * MILLISECOND, 10 * SECOND] {
        let quota = Quota::per_second(1_000).algorithm(Algorithm::FixedWindow);
        let policy = policy(quota, Consistency::Eventual, Duration::from_millis(100));
        let mut store = Store::new(quota);
        let copies = copies(0);
        // The limiter is ahead.
        let now = START + 400 * MILLISECOND + skew;
        let (counters, first) = request(&policy, (1, now), |request, charge| {
            assert!(matches!(copies.take(request), Take::Ask));
            let counters = copies.want(&context(false), charge, |_| 0, now).unwrap();
            let batch = copies.next_batch(&(0, counters.hash_tag()), "rl");
            (counters, batch.unwrap())
        });
        let reply = store.sync(0, &first, (now - skew) / 1_000);
        copies.decided(counters.key, 1);
        copies.charged(&[(Arc::clone(&counters), 1)], now, copies.last_number());
        copies.synced(&first, (now, Instant::now()), &reply);
        let take = request(&policy, (1, now), |request, _| copies.take(request));
        let is_rejected = matches!(take, Take::Decided(outcome, _) if !outcome.is_admitted());
        assert!(!is_rejected, "ahead by {skew} ns: one of 1,000 units is used");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_the_last_window_grants_nothing_of_this_one_again() {
    let quota = Quota::per_second(1_000).algorithm(Algorithm::FixedWindow);
    let policy = policy(quota, Consistency::Eventual, Duration::from_millis(100));
    let (copies, mut store) = copies_and_store(quota);
    let mut sync = |batch: &SyncBatch, at: u64| {
        // Another instance reports as well.
        store.fleet.insert(1, at / 1_000);
        store.sync(0, batch, at / 1_000)
    };
    // Each asks for more than this instance may charge.
    for at in [900, 930].map(|millis| START + millis * MILLISECOND) {
        let (counters, batch) = ask(&copies, &policy, 900, at);
        copies.decided(counters.key, 900);
        let batch = batch.unwrap();
        copies.synced(&batch, (at, Instant::now()), &sync(&batch, at));
    }
    let read = START + 960 * MILLISECOND;
    let (counters, late) = ask(&copies, &policy, 900, read);
    copies.decided(counters.key, 900);
    let late = late.unwrap();
    let reply = sync(&late, read);

    let takes = |cost, at| {
        let admits = |take| matches!(take, Take::Decided(outcome, _) if outcome.is_admitted());
        request(&policy, (cost, at), |request, _| admits(copies.take(request)))
    };
    let now = START + 1_001 * MILLISECOND;
    assert!(takes(400, now) && !takes(400, now), "it may charge a half");
    copies.synced(&late, (read, Instant::now()), &reply);
    assert!(takes(50, now) && !takes(400, now), "and not the same half again");
}
