//! A fleet that splits a limit, without a store.

use std::{error::Error, fs, path::Path, time::Duration};

use super::{
    draw,
    fleet::{Change, Plan, Traffic, Window, simulate},
};

const LIMIT: u64 = 100_000;

pub(crate) fn run(folder: Option<&Path>) -> Result<(), Box<dyn Error>> {
    for (name, title, plan) in plans() {
        let windows = simulate(&plan);
        report(title, &plan, &windows);
        if let Some(folder) = folder {
            let picture = draw::fleet(title, &windows, admitted(&plan))?;
            fs::write(folder.join(format!("simulate-{name}.svg")), picture)?;
        }
    }
    Ok(())
}

/// Each with a name for its picture.
fn plans() -> Vec<(&'static str, &'static str, Plan)> {
    let plan = Plan {
        limit: LIMIT,
        count: 96,
        windows: 40,
        steps: 20,
        clock_skew: Duration::ZERO,
        traffic: Traffic::Balanced,
        load: 1.5,
        changes: Vec::new(),
    };
    let resized = vec![
        (10, 7, Change::Count(80)),
        (15, 13, Change::Count(96)),
        (20, 5, Change::Limit(LIMIT * 3 / 2)),
        (30, 11, Change::Limit(LIMIT)),
    ];
    let of = |traffic| Plan { traffic, ..plan.clone() };
    vec![
        ("balanced", "96 instances, the same load on each", plan.clone()),
        ("few", "96 instances, 10 units a second for all", Plan { limit: 10, ..plan.clone() }),
        ("skewed", "96 instances, load by Zipf's law", of(Traffic::Skewed)),
        ("bursty", "96 instances, all of a second's load at once", of(Traffic::Bursty)),
        ("changing", "96, 80, 96 instances; the limit up and down", Plan { changes: resized, ..plan.clone() }),
        (
            "clocks",
            "clock skew of 100 ms, load at the borders, by true seconds",
            Plan { clock_skew: Duration::from_millis(100), steps: 100, ..of(Traffic::AtBorders) },
        ),
    ]
}

/// What was admitted: by the clocks of the instances, or in true seconds.
fn admitted(plan: &Plan) -> draw::Admitted {
    if plan.clock_skew.is_zero() { |window| window.admitted } else { |window| window.in_true_second }
}

fn report(title: &str, plan: &Plan, windows: &[Window]) {
    println!("{title}: {} a second, {} instances", plan.limit, plan.count);
    println!("window    limit  admitted      over    unused   true second   an instance");
    for (number, window) in windows.iter().enumerate() {
        println!(
            "{number:>6} {:>8} {:>9} {:>9} {:>9} {:>13}   {} to {}",
            window.limit,
            window.admitted,
            window.over(),
            window.unused(),
            window.in_true_second,
            window.least,
            window.most,
        );
    }
    let (all, limit) = (sum(windows, |window| window.admitted), sum(windows, |window| window.limit));
    let over = windows.iter().map(Window::over).max().unwrap_or(0);
    println!("{:.2}% used, at most {over} over the limit of a window\n", all as f64 / limit as f64 * 100.0);
}

fn sum(windows: &[Window], of: impl Fn(&Window) -> u64) -> u64 {
    windows.iter().map(of).sum()
}
