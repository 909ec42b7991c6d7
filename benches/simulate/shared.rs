//! A fleet that shares a limit through a store: `leased`, with `Split` and a naive scheme
//! beside it.

use std::{error::Error, fs, path::Path, time::Duration};

use tower_ratelimit::{Consistency, FailureMode};

use super::{
    draw::{self, Row},
    fleet::{self, Change, Plan, Traffic},
    levels::simulate,
    outcome::{Faults, Outcome, Sharing},
};

const SHARINGS: [(&str, Sharing); 2] = [("leased", Sharing::Level(Consistency::Leased)), ("naive", Sharing::Naive)];

const LIMITS: [u64; 3] = [10, 1_000, 100_000];

/// The limit that is drawn.
const DRAWN: u64 = 100_000;

pub(crate) fn run(folder: Option<&Path>) -> Result<(), Box<dyn Error>> {
    println!("load       limit     shared     used     over   worst window   store calls/s");
    for (name, title, faults) in cases() {
        for limit in LIMITS {
            let plan = plan(name, limit);
            let mut rows = vec![Row { name: "Split".into(), windows: fleet::simulate(&split(&plan)) }];
            for (sharing_name, sharing) in SHARINGS {
                let outcome = simulate(&plan, sharing, &faults);
                println!("{name:<10} {limit:<9} {sharing_name:<9} {}", figures(&outcome));
                rows.push(Row { name: sharing_name.into(), windows: outcome.windows });
            }
            if let Some(folder) = folder.filter(|_| limit == DRAWN) {
                rows.iter_mut().for_each(|row| row.name = caption(row));
                fs::write(folder.join(format!("simulate-levels-{name}.svg")), draw::comparison(title, &rows)?)?;
            }
        }
    }
    Ok(())
}

/// Each with a name for its picture, and what fails.
fn cases() -> [(&'static str, &'static str, Faults); 6] {
    let none = Faults { failure_mode: FailureMode::Closed, ..Faults::default() };
    let lossy = Faults { lost: 10, kills: true, ..none.clone() };
    let frozen = Faults { frozen: Some((8, 5)), failure_mode: FailureMode::Local, ..none.clone() };
    [
        ("skewed", "96 instances, load by Zipf's law", none.clone()),
        ("lossy", "the same; 1% of replies lost with their connection, an instance killed each second", lossy),
        ("frozen", "the same; the store is frozen from second 8 to 13", frozen),
        ("bursty", "96 instances, all of a second's load at once", none.clone()),
        ("changing", "96, 80, 96 instances with the same load; the limit up and down", none.clone()),
        ("even", "96 instances, the same load on each", none),
    ]
}

fn plan(case: &str, limit: u64) -> Plan {
    let changes = vec![
        (4, 7, Change::Count(80)),
        (7, 13, Change::Count(96)),
        (10, 5, Change::Limit(limit * 3 / 2)),
        (15, 11, Change::Limit(limit)),
    ];
    Plan {
        limit,
        count: 96,
        windows: 20,
        steps: 20,
        clock_skew: Duration::from_millis(100),
        traffic: match case {
            "even" | "changing" => Traffic::Balanced,
            "bursty" => Traffic::Bursty,
            _ => Traffic::Skewed,
        },
        load: 3.0,
        changes: if case == "changing" { changes } else { Vec::new() },
    }
}

/// The same for `Split`, by the clocks of the instances.
fn split(plan: &Plan) -> Plan {
    Plan { clock_skew: Duration::ZERO, ..plan.clone() }
}

fn figures(outcome: &Outcome) -> String {
    let (used, over, worst, calls) = (outcome.used(), outcome.over(), outcome.worst(), outcome.calls());
    format!("{used:>6.2}% {over:>7.3}% {worst:>14} {calls:>15.0}")
}

fn caption(row: &Row) -> String {
    let outcome = Outcome { windows: row.windows.clone(), calls: Vec::new() };
    format!("{}: {:.1}% used, {:.2}% over", row.name, outcome.used(), outcome.over())
}
