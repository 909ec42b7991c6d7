//! Every interleaving of two or three threads, by loom: `scripts/loom`.
//!
//! It covers the shards, the cap and the release of units. Policies and requests
//! use other primitives, and are built outside of the model.

use std::sync::Arc;

use loom::{model::Builder, thread};

use super::*;

/// Runs `check` with every interleaving of up to three preemptions.
fn explore(policy: impl Into<Policy>, max_keys: usize, check: impl Fn(Arc<Bench>) + Send + Sync + 'static) {
    let policy = Arc::new(CompiledPolicy::new(policy.into()).unwrap());
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        check(Arc::new(Bench { engine: Engine::full(max_keys), policy: Arc::clone(&policy) }));
    });
}

/// Runs `run` on `threads` threads, and returns their results.
fn on_threads<R: Send + 'static>(bench: &Arc<Bench>, threads: usize, run: fn(&Bench, usize) -> R) -> Vec<R> {
    let start = |number| {
        let bench = Arc::clone(bench);
        thread::spawn(move || run(&bench, number))
    };
    let started: Vec<_> = (1..threads).map(start).collect();
    let own = run(bench, 0);
    started.into_iter().map(|thread| thread.join().unwrap()).chain([own]).collect()
}

#[test]
fn the_last_unit_is_admitted_once() {
    explore(Quota::per_day(1), 10, |bench| {
        let admitted = on_threads(&bench, 3, |bench, _| bench.take("acme", 1, NOW).is_some());
        assert_eq!(admitted.into_iter().filter(|admitted| *admitted).count(), 1);
        assert_eq!(bench.engine.usage().keys, 1);
    });
}

#[test]
fn two_rules_are_charged_together_or_not_at_all() {
    let rule = |id: &str, limit| Rule::new(id).tier(Quota::per_day(limit));
    explore(Policy::new().rule(rule("narrow", 1)).rule(rule("wide", 5)), 10, |bench| {
        let admitted = on_threads(&bench, 2, |bench, _| bench.take("acme", 1, NOW).is_some());
        assert_eq!(admitted.into_iter().filter(|admitted| *admitted).count(), 1);
        let outcome = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0).0;
        let remaining: Vec<_> = outcome.tiers.iter().map(|tier| tier.remaining).collect();
        assert_eq!(remaining, [0, 4]);
    });
}

#[test]
fn two_rules_with_counters_are_charged_together_or_not_at_all() {
    let rule = |id: &str, limit| Rule::new(id).tier(Quota::per_day(limit));
    explore(Policy::new().rule(rule("wide", 5)).rule(rule("narrow", 2)), 10, |bench| {
        assert!(bench.take("acme", 1, NOW).is_some());
        let request = |bench: &Bench, _| bench.charge_existing(&Descriptor::new("/").tenant("acme"), NOW);
        let admitted = on_threads(&bench, 2, request);
        assert_eq!(admitted.into_iter().filter(|admitted| *admitted).count(), 1);
        let outcome = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0).0;
        let remaining: Vec<_> = outcome.tiers.iter().map(|tier| tier.remaining).collect();
        assert_eq!(remaining, [3, 0]);
    });
}

#[test]
fn the_cap_holds_while_keys_displace_each_other() {
    explore(Quota::per_day(2), 1, |bench| {
        let admitted = on_threads(&bench, 3, |bench, number| bench.take(&number.to_string(), 1, NOW).is_some());
        assert!(admitted.into_iter().all(|admitted| admitted));
        let usage = bench.engine.usage();
        assert_eq!(usage.keys, 1);
        assert_eq!(usage.displaced + usage.overflowed, 2);
    });
}

#[test]
fn a_unit_is_released_once_and_used_by_one() {
    explore(Quota::concurrent(1), 10, |bench| {
        let receipt = bench.take("acme", 1, NOW).unwrap();
        let clone = receipt.clone();
        let releasing = Arc::clone(&bench);
        let thread = thread::spawn(move || releasing.release(&clone, NOW));
        let early = bench.take("acme", 1, NOW);
        bench.release(&receipt, NOW);
        let late = if early.is_none() { bench.take("acme", 1, NOW) } else { None };
        thread.join().unwrap();
        assert!(early.is_some() || late.is_some(), "the unit was released before");
        assert!(bench.take("acme", 1, NOW).is_none(), "it was released twice");
    });
}
