//! The memory of sliding logs is bounded in bytes.

use super::*;

const CAP: usize = 1_000;
const BOUND: usize = 2 << 20;
const HOUR: u64 = 3_600 * SECOND;

fn bench() -> Bench {
    let quota = Quota::per_hour(50_000).algorithm(Algorithm::SlidingLog);
    Bench::with(Engine::full(CAP), tier(quota, false))
}

impl Bench {
    fn log_bytes(&self) -> usize {
        self.engine.store.log_memory.used()
    }

    /// How many of `requests`, a nanosecond apart, are admitted.
    fn admitted(&self, tenant: &str, requests: u64, now: u64) -> usize {
        (0..requests).filter(|nth| self.take(tenant, 1, now + nth).is_some()).count()
    }
}

#[test]
fn logs_stop_growing_at_the_bound_and_newcomers_are_admitted() {
    let bench = bench();
    // So many that the last log that doubles does not fit to the byte.
    let small = (0..700).map(|tenant| bench.admitted(&format!("small-{tenant}"), 20, NOW));
    assert_eq!(small.sum::<usize>(), 14_000);
    let admitted: usize = (0..9).map(|tenant| bench.admitted(&format!("tenant-{tenant}"), 30_000, NOW)).sum();
    assert!(admitted * 16 > BOUND / 2, "only {admitted} were admitted");
    assert!(bench.log_bytes() <= BOUND + CAP * 64, "{} bytes", bench.log_bytes());
    for newcomer in 0..CAP / 4 {
        let newcomer = format!("newcomer-{newcomer}");
        assert!(bench.take(&newcomer, 1, NOW + SECOND).is_some());
        assert!(bench.take(&newcomer, 1, NOW + 2 * SECOND).is_some(), "its log need not grow");
    }
    assert!(bench.log_bytes() <= BOUND + CAP * 64, "{} bytes", bench.log_bytes());

    // A log that may not grow admits as many units as it has entries for.
    let at = bench.earliest("tenant-8", 1, NOW + SECOND).unwrap();
    assert_eq!(at, NOW + HOUR, "its oldest entry leaves");
    assert!(bench.take("tenant-8", 1, at).is_some());
    assert!(bench.take("tenant-8", 1, at).is_some(), "at the same time, they share an entry");
}

#[test]
fn memory_is_released_with_the_logs() {
    let bench = bench();
    bench.admitted("early", 40_000, NOW);
    let full = bench.log_bytes();
    assert!(full >= 40_000 * 16, "{full} bytes");
    // Few entries are left of it.
    for second in 0..40 {
        bench.take("early", 1, NOW + HOUR + second * SECOND).unwrap();
    }
    assert!(bench.log_bytes() < full / 100, "{} of {full} bytes", bench.log_bytes());

    // Others make an idle log leave the store. A quarter of the cap is kept of those
    // that they displace.
    bench.admitted("idle", 40_000, NOW + 2 * HOUR);
    for other in 0..3 * CAP {
        bench.take(&format!("other-{other}"), 1, NOW + 4 * HOUR);
    }
    assert!(bench.log_bytes() <= (CAP + CAP / 4) * 64, "{} bytes", bench.log_bytes());
}

#[test]
fn a_limit_within_the_bound_is_exact() {
    let bench = bench();
    assert_eq!(bench.admitted("acme", 60_000, NOW), 50_000);
    assert_eq!(bench.earliest("acme", 1, NOW + SECOND), Some(NOW + HOUR));
}

#[test]
fn memory_is_released_with_idle_logs_that_were_displaced() {
    let bench = bench();
    for tenant in 0..CAP + CAP / 4 {
        bench.take(&format!("tenant-{tenant}"), 1, NOW);
    }
    let kept = bench.log_bytes();
    assert!(kept > CAP * 64, "displaced logs are kept");
    for newcomer in 0..CAP {
        bench.take(&format!("newcomer-{newcomer}"), 1, NOW + 2 * HOUR);
    }
    // A few newcomers are displaced as well, by the seed of their fingerprints.
    let bytes = bench.log_bytes();
    assert!(bytes <= CAP * 64 * 9 / 8 && bytes < kept, "{bytes} of {kept} bytes");
}
