//! Ten thousand requests wait on one key at a hundred a second: no slot is lost,
//! and no bound is broken.

use std::time::Duration;

use tower_ratelimit::{Algorithm, Quota};

use super::{MILLI, SECOND, limiter, rush, tiers};

const CALLERS: usize = 10_000;
const RATE: usize = 100;

/// When each is admitted; they are admitted in order.
async fn admissions(quotas: &[Quota]) -> Vec<Duration> {
    let admissions = rush(&limiter(tiers(quotas)), CALLERS).await;
    assert_eq!(admissions.len(), CALLERS);
    assert!(admissions.iter().map(|(who, _)| *who).eq(0..CALLERS), "out of order");
    admissions.into_iter().map(|(_, when)| when).collect()
}

fn hundred(algorithm: Algorithm) -> Quota {
    Quota::per_second(RATE as u64).algorithm(algorithm)
}

/// The most admissions in any period of `window`, without its end.
fn most_in_any(window: Duration, times: &[Duration]) -> usize {
    let first = |at: &Duration| times.partition_point(|time| *time + window <= *at);
    times.iter().enumerate().map(|(index, at)| index + 1 - first(at)).max().unwrap()
}

fn most_in_aligned(window: Duration, times: &[Duration]) -> usize {
    let of = |time: &Duration| time.as_nanos() / window.as_nanos();
    times.chunk_by(|a, b| of(a) == of(b)).map(<[_]>::len).max().unwrap()
}

#[tokio::test(start_paused = true)]
async fn token_bucket() {
    let times = admissions(&[hundred(Algorithm::TokenBucket)]).await;
    for (position, time) in times.iter().enumerate() {
        let after_burst = u32::try_from(position.saturating_sub(RATE - 1)).unwrap();
        assert_eq!(*time, 10 * MILLI * after_burst, "caller {position}");
    }
}

#[tokio::test(start_paused = true)]
async fn leaky_bucket() {
    let times = admissions(&[hundred(Algorithm::LeakyBucket).burst(CALLERS as u64)]).await;
    assert!(times.iter().zip(0..).all(|(time, position)| *time == 10 * MILLI * position));
}

#[tokio::test(start_paused = true)]
async fn fixed_window() {
    let times = admissions(&[hundred(Algorithm::FixedWindow)]).await;
    assert!(times.iter().enumerate().all(|(position, time)| time.as_millis() == (position / RATE * 1_000) as u128));
    assert_eq!(most_in_aligned(SECOND, &times), RATE);
}

#[tokio::test(start_paused = true)]
async fn anchored_window() {
    let times = admissions(&[hundred(Algorithm::AnchoredWindow)]).await;
    assert!(times.iter().enumerate().all(|(position, time)| time.as_millis() == (position / RATE * 1_000) as u128));
}

#[tokio::test(start_paused = true)]
async fn sliding_log() {
    let times = admissions(&[hundred(Algorithm::SlidingLog)]).await;
    assert_eq!(most_in_any(SECOND, &times), RATE);
    assert_eq!(*times.last().unwrap(), 99 * SECOND);
}

/// The last window, weighted by the fraction that still counts, and this one.
#[tokio::test(start_paused = true)]
async fn sliding_window() {
    let times = admissions(&[hundred(Algorithm::SlidingWindow)]).await;
    let start_of = |time: &Duration| Duration::from_secs(time.as_secs());
    for (position, time) in times.iter().enumerate() {
        let window = start_of(time);
        let first = times.partition_point(|earlier| *earlier < window);
        let before = match window.checked_sub(SECOND) {
            Some(last) => first - times.partition_point(|earlier| *earlier < last),
            None => 0,
        };
        let left = (window + SECOND - *time).as_nanos();
        let weighted = before as u128 * left / SECOND.as_nanos();
        let sum = weighted + (position + 1 - first) as u128;
        assert!(sum <= RATE as u128, "{sum} at {time:?}");
    }
    let last = *times.last().unwrap();
    assert!(last >= 99 * SECOND && last <= 101 * SECOND, "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn two_tiers() {
    let wide = Quota::new(150, 2 * SECOND).algorithm(Algorithm::FixedWindow);
    let times = admissions(&[hundred(Algorithm::FixedWindow), wide]).await;
    assert_eq!((most_in_aligned(SECOND, &times), most_in_aligned(2 * SECOND, &times)), (100, 150));
    assert_eq!(times.last().unwrap().as_secs(), (CALLERS as u64 - 1) / 150 * 2, "a slot was lost");

    let times = admissions(&[hundred(Algorithm::SlidingLog), Quota::per_second(60)]).await;
    // In thirds of a nanosecond, which makes a sixtieth of a second an integer.
    let (unit, second) = (50_000_000u128, 3_000_000_000u128);
    let (mut full_at, mut exact): (u128, Vec<u128>) = (0, Vec::new());
    for (position, time) in times.iter().enumerate() {
        let bucket = full_at.saturating_sub(59 * unit);
        let log = position.checked_sub(RATE).map_or(0, |before| exact[before] + second);
        let at = bucket.max(log).div_ceil(3) * 3;
        full_at = full_at.max(at) + unit;
        exact.push(at);
        // The timer rounds up to whole milliseconds.
        assert_eq!(time.as_millis(), (at / 3).div_ceil(1_000_000), "caller {position}");
    }
}
