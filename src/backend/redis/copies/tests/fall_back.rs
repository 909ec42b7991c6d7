//! Requests that the store does not reply to, beside some that it does.

use super::*;

const LIMIT: u64 = 20;
const NOW: u64 = START + 60 * MILLISECOND;

struct Fallback {
    policy: Arc<CompiledPolicy>,
    context: PlanContext,
    copies: Copies,
}

impl Fallback {
    /// Copies that know that nothing of the limit is used.
    fn new() -> Self {
        let quota = Quota::per_day(LIMIT).algorithm(Algorithm::FixedWindow);
        let policy = policy(quota, Consistency::Eventual, Duration::from_millis(100));
        let own = Self { policy, context: context(false), copies: copies(0) };
        let mut store = Store::new(quota);
        for at in [START, START + 50 * MILLISECOND] {
            let counters = own.ask(at);
            let batch = own.copies.next_batch(&(0, counters.hash_tag()), "rl").unwrap();
            own.copies.decided(counters.key, 1);
            own.copies.synced(&batch, (at, Instant::now()), &store.sync(0, &batch, at / 1_000));
        }
        own
    }

    /// Asks the store for one unit.
    fn ask(&self, at: u64) -> Arc<Counters> {
        request(&self.policy, (1, at), |_, charge| self.copies.want(&self.context, charge, |_| 0, at).unwrap())
    }

    /// How many of so many requests are admitted, to which the store does not reply.
    fn admitted_alone(&self, requests: u64) -> u64 {
        let is_admitted = |_: &u64| {
            let counters = self.ask(NOW);
            let outcome = self.copies.fall_back(&[(Arc::clone(&counters), 1)], NOW);
            self.copies.decided(counters.key, 1);
            outcome.is_some()
        };
        (0..requests).filter(is_admitted).count() as u64
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_store_may_still_charge_is_not_charged_alone() {
    let fallback = Fallback::new();
    let asked: Vec<_> = (0..15).map(|_| fallback.ask(NOW)).collect();
    let after = fallback.copies.last_number();
    assert_eq!(fallback.admitted_alone(10), LIMIT - 15);
    for counters in asked {
        fallback.copies.decided(counters.key, 1);
        fallback.copies.charged(&[(counters, 1)], NOW, after);
    }
    assert_eq!(fallback.admitted_alone(10), 0);
}

#[tokio::test(start_paused = true)]
async fn what_the_store_did_not_charge_is_left() {
    let fallback = Fallback::new();
    let asked: Vec<_> = (0..15).map(|_| fallback.ask(NOW)).collect();
    assert_eq!(fallback.admitted_alone(10), LIMIT - 15);
    asked.iter().for_each(|counters| fallback.copies.decided(counters.key, 1));
    assert_eq!(fallback.admitted_alone(30), 15);
}
