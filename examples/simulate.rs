//! Simulates a fleet that splits a limit without a store. Prints what each window
//! admitted, and draws it.
//!
//! `cargo run --example simulate`, or with a folder for the pictures:
//! `cargo run --example simulate -- docs`
//!
//! Every instance is a real limiter on its own clock, which the simulation steps.

#[path = "../tests/sim/fleet.rs"]
mod fleet;

use std::{
    fmt::{self, Write as _},
    fs,
    path::Path,
    time::Duration,
};

use self::fleet::{Change, Plan, Traffic, Window, simulate};

const LIMIT: u64 = 100_000;

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
fn admitted(plan: &Plan, window: &Window) -> u64 {
    if plan.clock_skew.is_zero() { window.admitted } else { window.in_true_second }
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

/// Above, what the fleet admitted, and in red what was over the limit; below,
/// what an instance did.
fn draw(title: &str, plan: &Plan, windows: &[Window]) -> Result<String, fmt::Error> {
    let top = windows.iter().map(|window| admitted(plan, window).max(window.limit)).max().unwrap_or(1).max(1) as f64;
    let most = windows.iter().map(|window| window.most).max().unwrap_or(1).max(1) as f64;
    let mut svg = String::from(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="680" height="320" font-family="sans-serif" font-size="12">"#,
    );
    svg.push_str("\n<rect width=\"680\" height=\"320\" fill=\"white\"/>\n");
    writeln!(svg, r#"<text x="40" y="20" font-weight="bold">{title}</text>"#)?;
    let width = 600.0 / windows.len().max(1) as f64;
    let mut bar = |x: f64, base: f64, height: f64, color: &str| {
        let (y, width) = (base - height, width - 1.0);
        writeln!(svg, r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{color}"/>"#)
    };
    for (number, window) in windows.iter().enumerate() {
        let x = 40.0 + number as f64 * width;
        let all = admitted(plan, window);
        let height = |units: u64| units as f64 / top * 150.0;
        bar(x, 190.0, height(all.min(window.limit)), "#3b6ea5")?;
        bar(x, 190.0 - height(window.limit), height(all.saturating_sub(window.limit)), "#c0392b")?;
        bar(x, 190.5 - height(window.limit), 1.0, "#222222")?;
        let each = |units: u64| units as f64 / most * 60.0;
        bar(x, 290.0 - each(window.least), each(window.most - window.least).max(1.0), "#7a9cc6")?;
    }
    let (first, last) = (windows.first().map_or(0, |window| window.limit), windows.len());
    writeln!(
        svg,
        r#"<text x="40" y="205">admitted by the fleet in each second; the line is the limit, {first} at first</text>"#
    )?;
    writeln!(svg, r#"<text x="40" y="306">an instance, from the least to the most; {most:.0} at the top</text>"#)?;
    writeln!(svg, r#"<text x="596" y="306">{last} seconds</text>"#)?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1);
    for (name, title, plan) in plans() {
        let windows = simulate(&plan);
        report(title, &plan, &windows);
        if let Some(folder) = &folder {
            fs::write(Path::new(folder).join(format!("simulate-{name}.svg")), draw(title, &plan, &windows)?)?;
        }
    }
    Ok(())
}
