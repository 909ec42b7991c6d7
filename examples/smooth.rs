//! When a fixed window lets requests go, as it is and smoothed: says how many
//! went in 10 ms, and draws it.
//!
//! `cargo run --example smooth`, or with a file: `.. -- docs/smooth.svg`
//!
//! More callers than the limit allows take turns, for some windows of a second,
//! 200 requests each.

use std::{
    error::Error,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use tower_ratelimit::{Algorithm, Descriptor, Policy, Quota, RateLimiter, Rule};

const LIMIT: u64 = 200;
const WINDOWS: u32 = 3;
const CALLERS: usize = 400;
const BINS: usize = 100;

type Histogram = [AtomicU32; BINS];

/// How many went in each hundredth of the window.
async fn run(smooth: bool) -> Result<Arc<Histogram>, Box<dyn Error>> {
    let quota = Quota::per_second(LIMIT).algorithm(Algorithm::FixedWindow);
    let rule = Rule::new("upstream").tier(quota).max_wait(Duration::from_secs(60)).smooth(smooth);
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    let went: Arc<Histogram> = Arc::new([const { AtomicU32::new(0) }; BINS]);

    let first = since_epoch().as_secs() + 1;
    let windows = first..first + u64::from(WINDOWS);
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (limiter, went, windows) = (limiter.clone(), Arc::clone(&went), windows.clone());
            tokio::spawn(async move {
                while since_epoch().as_secs() < windows.end {
                    let _permit = limiter.acquire(&Descriptor::new("/"), Duration::from_secs(60)).await;
                    let now = since_epoch();
                    if windows.contains(&now.as_secs()) {
                        went[now.subsec_millis() as usize * BINS / 1000].fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await?;
    }
    Ok(went)
}

fn since_epoch() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "an observer from outside")]
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn total(went: &Histogram) -> u32 {
    went.iter().map(|bin| bin.load(Ordering::Relaxed)).sum()
}

/// In 10 ms of a window, at the most.
fn most(went: &Histogram) -> f64 {
    went.iter().map(|bin| f64::from(bin.load(Ordering::Relaxed)) / f64::from(WINDOWS)).fold(0.0, f64::max)
}

/// One panel: a bar for each hundredth, on a scale of its own.
fn panel(svg: &mut String, top: usize, title: &str, went: &Histogram) -> std::fmt::Result {
    let most = most(went);
    let title = format!("{title}: {} a window, at most {most:.1} in 10 ms", total(went) / WINDOWS);
    writeln!(svg, r#"<text x="40" y="{}" font-weight="bold">{title}</text>"#, top + 14)?;
    for (bin, count) in went.iter().enumerate() {
        let height = f64::from(count.load(Ordering::Relaxed)) / f64::from(WINDOWS) / most.max(1.0) * 100.0;
        let (x, y) = (40 + 6 * bin, top as f64 + 124.0 - height);
        writeln!(svg, r##"<rect x="{x}" y="{y:.1}" width="5" height="{height:.1}" fill="#3b6ea5"/>"##)?;
    }
    for (x, label) in [(40, "0 ms"), (320, "500 ms"), (600, "1 s")] {
        writeln!(svg, r#"<text x="{x}" y="{}">{label}</text>"#, top + 140)?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let plain = run(false).await?;
    let smooth = run(true).await?;
    for (name, went) in [("as it is", &plain), ("smoothed", &smooth)] {
        println!("{name}: {} a window, at most {:.1} in 10 ms", total(went) / WINDOWS, most(went));
    }
    let Some(path) = std::env::args().nth(1) else { return Ok(()) };

    let mut svg = String::from(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="680" height="330" font-family="sans-serif" font-size="12">"#,
    );
    svg.push_str("\n<rect width=\"680\" height=\"330\" fill=\"white\"/>\n");
    panel(&mut svg, 10, "A fixed window of 200 a second", &plain)?;
    panel(&mut svg, 170, "The same, smoothed", &smooth)?;
    svg.push_str("</svg>\n");
    std::fs::write(path, svg)?;
    Ok(())
}
