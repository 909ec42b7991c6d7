//! A fleet whose shares follow demand by gossip, with fixed shares beside it.

use std::{error::Error, fs, path::Path, time::Duration};

use super::{
    draw::{self, Row},
    fleet::{self, Traffic, Window},
    gossip::{Plan, simulate, used, worst},
};

const LIMIT: u64 = 100_000;

/// The windows in which the fleet assembles.
const FIRST: usize = 5;

pub(crate) fn run(folder: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let mut rows = vec![row("fixed equal shares", fixed())];
    println!("window   limit   admitted: {}", plans().map(|(name, _)| name).join("; "));
    rows.extend(plans().into_iter().map(|(name, plan)| row(name, simulate(&plan))));
    for number in 0..rows[0].windows.len() {
        let admitted = rows[1..].iter().map(|row| format!("{:>9}", row.windows[number].admitted));
        println!("{number:>6} {LIMIT:>7} {}", admitted.collect::<String>());
    }
    rows.iter().for_each(|row| println!("{}", row.name));
    if let Some(folder) = folder {
        let title = "96 instances, load by Zipf's law, shares that follow demand";
        fs::write(folder.join("simulate-gossip.svg"), draw::comparison(title, &rows)?)?;
    }
    Ok(())
}

fn plans() -> [(&'static str, Plan); 4] {
    let plan = Plan::steady(LIMIT, 10, 96, 40);
    [
        ("gossip, clocks 100 ms apart, 1% of messages lost", plan.clone()),
        ("gossip; from second 15 on the load is in the reverse order", Plan { jump: Some(15), ..plan.clone() }),
        (
            "gossip; 5% lost, from second 15 on an instance killed and one added each second",
            Plan { lost: 50, kills_from: Some(15), ..plan.clone() },
        ),
        (
            "gossip; two halves cut off from 12 to 20, and the load reversed at 15",
            Plan { cut: 12..20, jump: Some(15), ..plan },
        ),
    ]
}

fn fixed() -> Vec<Window> {
    fleet::simulate(&fleet::Plan {
        limit: LIMIT,
        count: 96,
        windows: 40,
        steps: 20,
        clock_skew: Duration::ZERO,
        traffic: Traffic::Skewed,
        load: 1.5,
        changes: Vec::new(),
    })
}

fn row(name: &str, windows: Vec<Window>) -> Row {
    let measured = &windows[FIRST..];
    let (used, worst) = (used(measured) * 100.0, worst(measured) * 100.0);
    Row { name: format!("{name}: {used:.1}% used, at most {worst:.2}% over"), windows }
}
