//! `SystemClock` over a minute in which nothing reads it, in many processes, as
//! each calibrates its own counter. It takes real time, so it is not part of the
//! default run: `cargo test --release --test clock -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "it compares with the real clocks")]

use std::{
    env,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use tower_ratelimit::time::{Clock, SystemClock, Timestamp};

const PROCESSES: usize = 100;
const IDLE: Duration = Duration::from_secs(60);
const MOST: u64 = 1_000_000;

/// A reading of the clock, the monotonic clock and the wall clock, within two
/// microseconds if possible.
fn read(clock: &SystemClock) -> (Timestamp, Instant, Timestamp) {
    let attempts = (0..100).map(|_| {
        let before = Instant::now();
        let (now, wall) = (clock.now(), Timestamp::from(SystemTime::now()));
        (before.elapsed(), (now, before, wall))
    });
    attempts.min_by_key(|(took, _)| *took).unwrap().1
}

/// Prints how far the clock and the wall clock have drifted from the monotonic
/// clock, in nanoseconds.
#[test]
#[ignore = "one of the processes of `an_idle_minute_is_a_minute_in_every_process`"]
fn idle() {
    let clock = SystemClock::new();
    // Past the first comparison with the wall clock.
    thread::sleep(Duration::from_millis(1_100));
    let (start, monotonic, wall) = read(&clock);
    thread::sleep(IDLE);
    // The first reading counts: no other may have corrected the clock before.
    let before = monotonic.elapsed();
    let first = clock.now();
    let after = monotonic.elapsed();
    let (_, _, last_wall) = read(&clock);
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap();
    let passed = nanos(first.saturating_since(start));
    let drift = passed.saturating_sub(nanos(after)).max(nanos(before).saturating_sub(passed));
    let wall_passed = nanos(last_wall.saturating_since(wall));
    println!("drift {drift} wall {}", wall_passed.abs_diff(nanos(monotonic.elapsed())));
}

#[test]
#[ignore = "takes a minute of real time"]
fn an_idle_minute_is_a_minute_in_every_process() {
    let start = || {
        let arguments = ["--exact", "idle", "--ignored", "--nocapture"];
        Command::new(env::current_exe().unwrap()).args(arguments).stdout(Stdio::piped()).spawn().unwrap()
    };
    let processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let mut drifts: Vec<(u64, u64)> = processes
        .into_iter()
        .map(|process| {
            let output = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
            let number = |name: &str| output.split(name).nth(1)?.split_whitespace().next()?.parse().ok();
            (number("drift ").unwrap(), number("wall ").unwrap())
        })
        .collect();
    drifts.sort_unstable();
    println!("drift in ns: median {}, largest {}", drifts[PROCESSES / 2].0, drifts[PROCESSES - 1].0);
    for (drift, wall) in drifts {
        assert!(drift <= MOST + wall, "drifted by {drift} ns, the wall clock by {wall} ns");
    }
}
