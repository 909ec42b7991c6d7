//! When a fixed window admits requests, without and with smoothing: more callers than
//! the limit allows wait in windows of a second, each of which admits 200 requests.
//!
//! `cargo run --example smooth [-- FILE.svg]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tower_ratelimit::{Algorithm, Descriptor, Policy, Quota, RateLimiter, Rule};

type Error = Box<dyn std::error::Error>;

const LIMIT: u64 = 200;
const WINDOWS: u32 = 3;
const CALLERS: usize = 400;
const BINS: usize = 100;

/// How many requests are admitted in each hundredth of a window, on average.
async fn run(smooth: bool) -> Result<Vec<f64>, Error> {
    let quota = Quota::per_second(LIMIT).algorithm(Algorithm::FixedWindow);
    let rule = Rule::new("upstream").tier(quota).max_wait(Duration::from_secs(60)).smooth(smooth);
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    let admitted = Arc::new([const { AtomicU32::new(0) }; BINS]);

    let first = since_epoch().as_secs() + 1;
    let windows = first..first + u64::from(WINDOWS);
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (limiter, admitted, windows) = (limiter.clone(), Arc::clone(&admitted), windows.clone());
        callers.spawn(async move {
            while since_epoch().as_secs() < windows.end {
                let _permit = limiter.acquire(&Descriptor::new("/"), Duration::from_secs(60)).await;
                let now = since_epoch();
                if windows.contains(&now.as_secs()) {
                    admitted[now.subsec_millis() as usize * BINS / 1000].fetch_add(1, Relaxed);
                }
            }
        });
    }
    callers.join_all().await;
    Ok(admitted.iter().map(|bin| f64::from(bin.load(Relaxed)) / f64::from(WINDOWS)).collect())
}

fn since_epoch() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "an observer from outside")]
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut panels = String::new();
    for (top, smooth, name) in [(10, false, "plain"), (170, true, "smoothed")] {
        let admitted = run(smooth).await?;
        let (total, most) = (admitted.iter().sum::<f64>(), admitted.iter().copied().fold(0.0, f64::max));
        let title = format!("{name}: {total:.0} a window, at most {most:.1} in 10 ms");
        println!("{title}");
        panels += &panel(top, &title, &admitted, most);
    }
    if let Some(path) = std::env::args().nth(1) {
        let svg = r#"<svg xmlns="http://www.w3.org/2000/svg" width="680" height="330" font-family="sans-serif" font-size="12">"#;
        std::fs::write(path, format!("{svg}\n<rect width=\"680\" height=\"330\" fill=\"white\"/>\n{panels}</svg>\n"))?;
    }
    Ok(())
}

/// A bar for each hundredth. The highest bar is the most that was admitted.
fn panel(top: usize, title: &str, admitted: &[f64], most: f64) -> String {
    let text = |x, y, text: &str| format!("<text x=\"{x}\" y=\"{y}\">{text}</text>\n");
    let bar = |(bin, count): (usize, &f64)| {
        let (x, height) = (40 + 6 * bin, count / most.max(1.0) * 100.0);
        let y = top as f64 + 124.0 - height;
        format!("<rect x=\"{x}\" y=\"{y:.1}\" width=\"5\" height=\"{height:.1}\" fill=\"#3b6ea5\"/>\n")
    };
    let axis = [(40, "0 ms"), (320, "500 ms"), (600, "1 s")].map(|(x, label)| text(x, top + 140, label));
    text(40, top + 14, title) + &admitted.iter().enumerate().map(bar).collect::<String>() + &axis.concat()
}
