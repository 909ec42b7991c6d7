//! A fleet whose shares follow demand by gossip, with fixed shares beside it.

use std::{error::Error, fs, path::Path, time::Duration};

use super::{
    draw::{self, Row},
    fleet::{self, Traffic, Window},
    gossip::{Plan, TenantPlan, simulate, used, worst},
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
    tenants();
    if let Some(folder) = folder {
        let title = "96 instances, load by Zipf's law, shares that follow demand";
        fs::write(folder.join("simulate-gossip.svg"), draw::comparison(title, &rows)?)?;
    }
    Ok(())
}

/// Of 64 tenants, each with a limit of its own, 48 reach one instance, and 16 reach all.
fn tenants() {
    let plan = TenantPlan { limit: 960, tenants: 64, count: 96, windows: 24, lost: 10, cut: 0..0 };
    let demand = |tenant: usize| match tenant % 4 {
        0 => 960,
        _ => 2_400 / (1 + tenant as u64 / 8),
    };
    let windows = plan.simulate(|_, tenant, index| match tenant % 4 {
        0 => demand(tenant) / 96,
        _ if tenant * 7 % 96 == index => demand(tenant),
        _ => 0,
    });
    let over = windows.iter().flatten().map(|admitted| admitted.saturating_sub(plan.limit)).max();
    println!("64 tenants with 960 a second each, 16 of them spread; at most {} over", over.unwrap_or(0));
    let admissible = |is_spread: bool| -> u64 {
        let tenants = (0..plan.tenants).filter(|tenant| (tenant % 4 == 0) == is_spread);
        tenants.map(|tenant| demand(tenant).min(plan.limit)).sum()
    };
    for (number, window) in windows.iter().enumerate() {
        let used = |is_spread: bool| {
            let of_kind = window.iter().enumerate().filter(|(tenant, _)| (tenant % 4 == 0) == is_spread);
            of_kind.map(|(_, admitted)| admitted).sum::<u64>() as f64 / admissible(is_spread) as f64 * 100.0
        };
        println!(
            "{number:>6} {:>5.1}% of what one instance may use, {:>5.1}% of what is spread",
            used(false),
            used(true)
        );
    }
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
