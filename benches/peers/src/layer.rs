//! A complete Tower layer over a no-op service: admissions, and rejections with
//! their complete response.

use std::fs;

use crate::{
    chart,
    contenders::{self, Contender, Limit, Per},
    keys::{self, Caller},
    race::{Contestant, Outcome, Plan, race},
    table::{Table, figure, times},
};

const KEYS: usize = 10_000;

/// Writes a chart of what one thread pays by API key, if it is given a file.
pub fn admission(plan: Plan, chart: Option<&str>) {
    let added = section(plan, "Layer over a no-op service", Limit::Plenty);
    if let Some(file) = chart {
        let svg = chart::draw("What a layer adds to a request, in ns", &added);
        fs::write(file, svg).unwrap_or_else(|error| eprintln!("{file}: {error}"));
    }
    println!(
        "\n\"added\" is what the layer adds to the same call without it. `axum-governor` and \
         `throttle-kit` always send their headers."
    );
}

pub fn rejection(plan: Plan) {
    section(plan, "Rejection with its complete response", Limit::Exhausted);
    println!(
        "\nNamed as in admissions; every layer sends `Retry-After` with a rejection, `rate-net` all \
         its headers in both rows. `throttle-kit`'s `Retry-After` is always 1; `rate-net`, \
         `throttle-kit` and `tower-rate-limiter` send no body. `tower_governor` and \
         `axum-governor` make a clock for each rejection, which costs more on a virtual machine \
         than on bare metal."
    );
}

/// Returns what each layer adds, in ns, in the last table's rows of one thread.
fn section(plan: Plan, title: &str, limit: Limit) -> Vec<(String, f64)> {
    let mut of_one = Vec::new();
    for (tenant, per) in [("peer address", Per::Peer), ("API key in a header", Per::ApiKey)] {
        let mut table = Table::new(
            format!("{title}, 10,000 keys by {tenant}"),
            ["layer", "threads", "ns a call and thread", "added", "allocations", "times cheaper than tower_governor"],
        );
        let (contestants, headers) = split(contenders::all(per, limit));
        for threads in [1, 2] {
            let streams: Vec<_> = (1..=threads).map(|seed| keys::stream(KEYS, seed, Caller::new)).collect();
            let outcomes = race(&contestants, &streams, plan);
            rows(&mut table, threads, &outcomes, &headers);
            if threads == 1 {
                let added = |each: &Outcome| (each.name.to_owned(), each.above(&outcomes[0]).nanos().median);
                of_one = outcomes.iter().skip(1).map(added).collect();
            }
        }
        table.print();
    }
    of_one
}

fn split(contenders: Vec<Contender>) -> (Vec<Contestant<Caller>>, Vec<bool>) {
    contenders.into_iter().map(|each| (each.contestant, each.headers)).unzip()
}

/// The first outcome is the bare service. Layers with headers are compared with
/// `tower_governor` with headers, the others with `tower_governor` without.
fn rows(table: &mut Table, threads: u64, outcomes: &[Outcome], headers: &[bool]) {
    let added: Vec<Outcome> = outcomes.iter().map(|each| each.above(&outcomes[0])).collect();
    for (index, outcome) in outcomes.iter().enumerate() {
        let mut cells = [String::new(), String::new()];
        if index > 0 {
            let peer = headers.iter().skip(1).position(|has| *has == headers[index]);
            let governor = &added[1 + peer.expect("tower_governor of each kind")];
            let ratio = added[index].paired(governor, |own, governor| governor / own);
            cells = [added[index].nanos().to_string(), times(ratio)];
        }
        let [plus, cheaper] = cells;
        table.row([
            outcome.name.to_owned(),
            threads.to_string(),
            outcome.nanos().to_string(),
            plus,
            figure(outcome.allocations),
            cheaper,
        ]);
    }
}
