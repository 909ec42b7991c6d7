//! How much memory a key takes that a copy decides.

use super::*;
use crate::backend::{AcquireRequest, Charge, redis::tests::request_of};

/// Enough for tables to be as full as they are on average.
const KEYS: u64 = 20_000;

/// Makes a request of every key.
fn for_each_key(policy: &CompiledPolicy, now: u64, mut with: impl FnMut(&AcquireRequest<'_>, &Charge<'_>)) {
    for index in 0..KEYS {
        request_of(&format!("tenant-{index:09}"), policy, (1, now), &mut with);
    }
}

/// The heap of copies that have each decided a request, in bytes a key, as they were
/// asked for.
#[tokio::test(start_paused = true)]
async fn a_key_takes_little_memory() {
    let quota = Quota::per_second(1_000).algorithm(Algorithm::FixedWindow);
    let policy = policy(quota, Consistency::Eventual, Duration::from_millis(100));
    let (context, mut store) = (context(false), Store::new(quota));
    let mut copies = None;
    let taken = allocation_counter::measure(|| {
        let own = Copies::new(1, (0, &Arc::new(Instances::new())), true, Duration::from_secs(1));
        // A key is new until its second report.
        for at in [START, START + 50 * MILLISECOND] {
            for_each_key(&policy, at, |request, charge| {
                assert!(matches!(own.take(request), Take::Ask));
                let counters = own.want(&context, charge, |_| 0, at).unwrap();
                let batch = own.next_batch(&(0, counters.hash_tag()), "rl").unwrap();
                own.decided(counters.key, 1);
                own.synced(&batch, (at, Instant::now()), &store.sync(0, &batch, at / 1_000));
            });
        }
        for_each_key(&policy, START + 60 * MILLISECOND, |request, _| {
            assert!(matches!(own.take(request), Take::Decided(outcome, _) if outcome.is_admitted()));
        });
        copies = Some(own);
    });
    let bytes = u64::try_from(taken.bytes_current).unwrap() / KEYS;
    println!("{bytes} bytes");
    assert!(bytes <= 410, "{bytes} bytes");
}
