//! Matching a path against few rules and against many.

use tower_ratelimit::{Descriptor, Policy, Rule};

use crate::{
    ours::{limiter, plenty},
    race::{Contestant, Meter, Plan, now, race},
    table::{Table, figure, times},
};

pub fn section(plan: Plan) {
    let mut table = Table::new(
        "Matching, one rule of many applies",
        ["rules", "ns a decision", "allocations", "of 10 rules' cost"],
    );
    let contestants = [("10", 10), ("1,000", 1_000)].map(|(name, rules)| contestant(name, rules));
    let outcomes = race(&contestants, &[paths()], plan);
    for outcome in &outcomes {
        table.row([
            outcome.name.to_owned(),
            outcome.nanos().to_string(),
            figure(outcome.allocations),
            times(outcome.paired(&outcomes[0], |own, few| own / few)),
        ]);
    }
    table.print();
    println!("\nNo peer in this comparison has rules by path.");
}

/// Paths of the ten rules that both policies contain. The counters are equal, so
/// only the matching differs.
fn paths() -> Vec<String> {
    (0..8192).map(|index| format!("/v1/resource-{}/items/{index}", index % 10)).collect()
}

fn contestant(name: &'static str, rules: usize) -> Contestant<String> {
    let rule = |index: usize| {
        Rule::new(format!("rule-{index}")).path(format!("/v1/resource-{index}/items/{{item}}")).tier(plenty())
    };
    let policy = (0..rules).fold(Policy::new(), |policy, index| policy.rule(rule(index)));
    let limiter = limiter(policy);
    Contestant::new(name, move |paths: &[String], start, calls| {
        let mut meter = Meter::default();
        let rejected = meter.measure(|| {
            (0..calls)
                .map(|call| &paths[(start + call) % paths.len()])
                .filter(|path| !now(limiter.check(&Descriptor::new(path).tenant("acme"))).is_allowed())
                .count()
        });
        assert_eq!(rejected, 0, "rejected within its limit");
        meter
    })
}
