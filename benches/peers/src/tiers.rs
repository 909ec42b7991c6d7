//! One key under two limits.

use std::sync::Arc;

use crate::{
    decision::{Limitador, contestant, governor_limiter},
    keys,
    race::{Contestant, Plan, race},
    table::{Table, figure, times},
};

pub fn section(plan: Plan) {
    for (what, count) in [("1,000 keys", 1_000), ("100,000 keys", 100_000)] {
        let mut table = Table::new(
            format!("Keyed decision under two limits, {what}"),
            ["crate", "all or nothing", "ns a decision", "allocations", "times cheaper than two of governor"],
        );
        let outcomes = race(&contestants(), &[keys::stream(count, 1, keys::tenant)], plan);
        for outcome in &outcomes {
            table.row([
                outcome.name.to_owned(),
                if outcome.name == TWICE { "no" } else { "yes" }.to_owned(),
                outcome.nanos().to_string(),
                figure(outcome.allocations),
                times(outcome.paired(&outcomes[0], |own, governor| governor / own)),
            ]);
        }
        table.print();
    }
    println!(
        "\nTwo limiters of governor decide one after the other: the first keeps its charge when the \
         second rejects."
    );
}

const TWICE: &str = "governor, twice";

fn contestants() -> Vec<Contestant<String>> {
    let mut all = vec![governor_twice(), limitador()];
    #[cfg(feature = "ours")]
    all.push(crate::ours::two_tiers());
    all
}

fn governor_twice() -> Contestant<String> {
    let limiters = Arc::new([governor_limiter(), governor_limiter()]);
    contestant(TWICE, move || {
        let limiters = Arc::clone(&limiters);
        move |tenant| limiters.iter().all(|limiter| limiter.check_key(tenant).is_ok())
    })
}

fn limitador() -> Contestant<String> {
    let limiter = Arc::new(Limitador::of_windows(&[86_400, 2 * 86_400]));
    contestant("limitador", move || {
        let limiter = Arc::clone(&limiter);
        move |tenant| limiter.allows(tenant)
    })
}
