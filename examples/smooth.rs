//! When a fixed window admits requests, without and with smoothing. Prints the
//! largest number admitted in 10 ms, and draws all.
//!
//! `cargo run --example smooth`, or with a file for the picture:
//! `cargo run --example smooth -- docs/smooth.svg`
//!
//! More callers than the limit allows wait in windows of a second, each of which
//! admits 200 requests.

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

/// How many requests were admitted in each hundredth of the window.
async fn run(smooth: bool) -> Result<Arc<Histogram>, Box<dyn Error>> {
    let quota = Quota::per_second(LIMIT).algorithm(Algorithm::FixedWindow);
    let rule = Rule::new("upstream").tier(quota).max_wait(Duration::from_secs(60)).smooth(smooth);
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    let admitted: Arc<Histogram> = Arc::new([const { AtomicU32::new(0) }; BINS]);

    let first = since_epoch().as_secs() + 1;
    let windows = first..first + u64::from(WINDOWS);
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (limiter, admitted, windows) = (limiter.clone(), Arc::clone(&admitted), windows.clone());
            tokio::spawn(async move {
                while since_epoch().as_secs() < windows.end {
                    let _permit = limiter.acquire(&Descriptor::new("/"), Duration::from_secs(60)).await;
                    let now = since_epoch();
                    if windows.contains(&now.as_secs()) {
                        admitted[now.subsec_millis() as usize * BINS / 1000].fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await?;
    }
    Ok(admitted)
}

fn since_epoch() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "an observer from outside")]
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn total(admitted: &Histogram) -> u32 {
    admitted.iter().map(|bin| bin.load(Ordering::Relaxed)).sum()
}

/// The most that were admitted in 10 ms of a window.
fn most(admitted: &Histogram) -> f64 {
    admitted.iter().map(|bin| f64::from(bin.load(Ordering::Relaxed)) / f64::from(WINDOWS)).fold(0.0, f64::max)
}

/// One panel: a bar for each hundredth, with its own scale.
fn panel(svg: &mut String, top: usize, title: &str, admitted: &Histogram) -> std::fmt::Result {
    let most = most(admitted);
    let title = format!("{title}: {} a window, at most {most:.1} in 10 ms", total(admitted) / WINDOWS);
    writeln!(svg, r#"<text x="40" y="{}" font-weight="bold">{title}</text>"#, top + 14)?;
    for (bin, count) in admitted.iter().enumerate() {
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
    for (name, admitted) in [("plain", &plain), ("smoothed", &smooth)] {
        println!("{name}: {} a window, at most {:.1} in 10 ms", total(admitted) / WINDOWS, most(admitted));
    }
    let Some(path) = std::env::args().nth(1) else { return Ok(()) };

    let mut svg = String::from(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="680" height="330" font-family="sans-serif" font-size="12">"#,
    );
    svg.push_str("\n<rect width=\"680\" height=\"330\" fill=\"white\"/>\n");
    panel(&mut svg, 10, "A fixed window of 200 a second", &plain)?;
    panel(&mut svg, 170, "A smoothed window of 200 a second", &smooth)?;
    svg.push_str("</svg>\n");
    std::fs::write(path, svg)?;
    Ok(())
}
