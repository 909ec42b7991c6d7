//! How much memory a key takes that a copy decides.

use super::*;
use crate::{
    backend::{AcquireRequest, Charge},
    descriptor::Descriptor,
    policy::Resolved,
    time::Timestamp,
};

/// Enough for tables to be as full as they are on average.
const KEYS: u64 = 20_000;

/// Does something with the charge of every key.
fn for_each_key(policy: &CompiledPolicy, mut with: impl FnMut(&[Charge<'_>])) {
    for index in 0..KEYS {
        let tenant = format!("tenant-{index:09}");
        let descriptor = Descriptor::new("/").tenant(&*tenant);
        let (prepared, mut resolved) = (policy.prepare(&descriptor), Resolved::default());
        policy.resolve(&descriptor, &prepared, &mut resolved);
        with(&resolved.enforced);
    }
}

fn at_time<'a>(charges: &'a [Charge<'a>], now: u64) -> AcquireRequest<'a> {
    AcquireRequest::new(charges, Timestamp::from_nanos(now), Duration::ZERO)
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
        let own = Copies::new(1, 0, true, &Arc::new(Instances::new()));
        // A key is new until its second report.
        for at in [START, START + 50 * MILLISECOND] {
            for_each_key(&policy, |charges| {
                assert!(matches!(own.take(&at_time(charges, at)), Take::Ask));
                let counters = own.want(&context, &charges[0], |_| 0, at).unwrap();
                let batch = own.next_batch(&(0, Arc::clone(&counters.hash_tag)), "rl").unwrap();
                own.decided(counters.key, 1);
                own.synced(&batch, (at, Instant::now()), &store.sync(0, &batch, at / 1_000));
            });
        }
        for_each_key(&policy, |charges| {
            let take = own.take(&at_time(charges, START + 60 * MILLISECOND));
            assert!(matches!(take, Take::Decided(outcome, _) if outcome.is_admitted()));
        });
        copies = Some(own);
    });
    let bytes = u64::try_from(taken.bytes_current).unwrap() / KEYS;
    println!("{bytes} bytes");
    assert!(bytes <= 900, "{bytes} bytes");
}
