//! A server that is overloaded, behind several protections: what each made of it, as a
//! table and as a picture.

use std::{error::Error, fs, path::Path};

use super::{
    draw::{self, Row},
    executor,
    fleet::Window,
    protections::{CONTESTANTS, Contestant, Protect},
    server::{self, CAPACITY, Phase, Plan, Second, load},
};

pub(crate) fn run(folder: Option<&Path>, peers: &[Contestant]) -> Result<(), Box<dyn Error>> {
    let contestants: Vec<&Contestant> = CONTESTANTS.iter().chain(peers).collect();
    for (title, plan, overloaded) in scenarios() {
        println!("\n### {title}\n");
        println!("| protection | goodput | p99 | critical in time | normal after |");
        println!("|---|---:|---:|---:|---:|");
        for (name, protect) in &contestants {
            println!("| {name} | {} |", figures(&plan, overloaded, *protect));
        }
    }
    let phases = [load(20, 0.5), load(30, 3.0), load(40, 0.5)];
    println!("\n### three times the capacity, handlers that block the executor\n");
    println!("| protection | goodput | p99 | critical in time | normal after |");
    println!("|---|---:|---:|---:|---:|");
    for (name, protect) in executor::CONTESTANTS {
        let seconds = executor::simulate(&phases, 1, protect);
        println!("| {name} | {} |", shown(&seconds, &phases, 1, executor::CAPACITY));
    }
    let Some(folder) = folder else { return Ok(()) };
    let plan = Plan { phases: drawn(), bimodal: false, seed: 1 };
    let rows: Vec<Row> = contestants.iter().map(|(name, protect)| row(name, &plan, *protect)).collect();
    let title = "answers in time each second; line: what the server can give on average; red: above that";
    Ok(fs::write(folder.join("overload.svg"), draw::comparison(title, &rows)?)?)
}

/// With the number of the phase that is measured.
fn scenarios() -> [(&'static str, Plan, usize); 5] {
    let plan = |phases| Plan { phases, bimodal: false, seed: 1 };
    let step = |most| vec![load(20, 0.5), load(30, most), load(40, 0.5)];
    let mut slow = step(0.5);
    slow[1].slowness = 10.0;
    let cold = Phase { seconds: 5, load: 2.0, slowness: 3.0 };
    [
        ("load of twice the capacity", plan(step(2.0)), 1),
        ("load of ten times the capacity", plan(step(10.0)), 1),
        ("twice the capacity, bimodal times", Plan { bimodal: true, ..plan(step(2.0)) }, 1),
        ("half the capacity, a dependency ten times slower", plan(slow), 1),
        ("a restart under twice the capacity, cold for 5 s", plan(vec![cold, load(25, 2.0), load(40, 0.5)]), 1),
    ]
}

fn drawn() -> Vec<Phase> {
    let slow = Phase { seconds: 30, load: 0.5, slowness: 10.0 };
    vec![load(15, 0.5), load(25, 2.0), load(15, 0.5), load(25, 10.0), load(15, 0.5), slow, load(15, 0.5)]
}

fn figures(plan: &Plan, overloaded: usize, protect: Protect) -> String {
    let capacity = CAPACITY / plan.phases[overloaded].slowness;
    shown(&server::simulate(plan, protect), &plan.phases, overloaded, capacity)
}

fn shown(seconds: &[Second], phases: &[Phase], overloaded: usize, capacity: f64) -> String {
    let start: usize = phases[..overloaded].iter().map(|phase| phase.seconds).sum();
    let (during, after) = seconds[start..].split_at(phases[overloaded].seconds);
    let summary = server::summary(during, capacity);
    let p99 = summary.p99.map_or_else(|| "none".into(), |millis| format!("{millis} ms"));
    let normal = server::recovery(after).map_or_else(|| "not in 40 s".into(), |seconds| format!("{seconds} s"));
    format!("{:.1}% | {p99} | {:.1}% | {normal}", summary.goodput * 100.0, summary.critical * 100.0)
}

fn row(name: &str, plan: &Plan, protect: Protect) -> Row {
    let phases = plan.phases.iter().flat_map(|phase| vec![*phase; phase.seconds]);
    let windows = server::simulate(plan, protect).into_iter().zip(phases).map(|(second, phase)| Window {
        limit: (CAPACITY / phase.slowness) as u64,
        admitted: second.good as u64,
        ..Window::default()
    });
    Row { name: name.into(), windows: windows.collect() }
}
