//! Ten thousand wait on one key of a hundred a second: none of its slots is
//! lost, and no bound is broken.

use std::time::Duration;

use tower_ratelimit::{Algorithm, Quota};

use super::{MILLI, SECOND, limiter, rush, tiers};

const CALLERS: usize = 10_000;
const RATE: usize = 100;

/// When each is admitted; they are admitted in order.
async fn departures(quotas: &[Quota]) -> Vec<Duration> {
    let departures = rush(&limiter(tiers(quotas)), CALLERS).await;
    assert_eq!(departures.len(), CALLERS);
    assert!(departures.iter().map(|(who, _)| *who).eq(0..CALLERS), "out of order");
    departures.into_iter().map(|(_, when)| when).collect()
}

fn hundred(algorithm: Algorithm) -> Quota {
    Quota::per_second(RATE as u64).algorithm(algorithm)
}

/// The most that go in any time of `window`, ends apart.
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
    let times = departures(&[hundred(Algorithm::TokenBucket)]).await;
    for (place, time) in times.iter().enumerate() {
        let after_burst = u32::try_from(place.saturating_sub(RATE - 1)).unwrap();
        assert_eq!(*time, 10 * MILLI * after_burst, "caller {place}");
    }
}

#[tokio::test(start_paused = true)]
async fn leaky_bucket() {
    let times = departures(&[hundred(Algorithm::LeakyBucket).burst(CALLERS as u64)]).await;
    assert!(times.iter().zip(0..).all(|(time, place)| *time == 10 * MILLI * place));
}

#[tokio::test(start_paused = true)]
async fn fixed_window() {
    let times = departures(&[hundred(Algorithm::FixedWindow)]).await;
    assert!(times.iter().enumerate().all(|(place, time)| time.as_millis() == (place / RATE * 1_000) as u128));
    assert_eq!(most_in_aligned(SECOND, &times), RATE);
}

#[tokio::test(start_paused = true)]
async fn anchored_window() {
    let times = departures(&[hundred(Algorithm::AnchoredWindow)]).await;
    assert!(times.iter().enumerate().all(|(place, time)| time.as_millis() == (place / RATE * 1_000) as u128));
}

#[tokio::test(start_paused = true)]
async fn sliding_log() {
    let times = departures(&[hundred(Algorithm::SlidingLog)]).await;
    assert_eq!(most_in_any(SECOND, &times), RATE);
    assert_eq!(*times.last().unwrap(), 99 * SECOND);
}

/// The last window, weighted by what is left of it, and this one.
#[tokio::test(start_paused = true)]
async fn sliding_window() {
    let times = departures(&[hundred(Algorithm::SlidingWindow)]).await;
    let start_of = |time: &Duration| Duration::from_secs(time.as_secs());
    for (place, time) in times.iter().enumerate() {
        let window = start_of(time);
        let first = times.partition_point(|earlier| *earlier < window);
        let before = match window.checked_sub(SECOND) {
            Some(last) => first - times.partition_point(|earlier| *earlier < last),
            None => 0,
        };
        let left = (window + SECOND - *time).as_nanos();
        let weighted = before as u128 * left / SECOND.as_nanos();
        let sum = weighted + (place + 1 - first) as u128;
        assert!(sum <= RATE as u128, "{sum} at {time:?}");
    }
    let last = *times.last().unwrap();
    assert!(last >= 99 * SECOND && last <= 101 * SECOND, "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn two_tiers() {
    let wide = Quota::new(150, 2 * SECOND).algorithm(Algorithm::FixedWindow);
    let times = departures(&[hundred(Algorithm::FixedWindow), wide]).await;
    assert_eq!((most_in_aligned(SECOND, &times), most_in_aligned(2 * SECOND, &times)), (100, 150));
    assert_eq!(times.last().unwrap().as_secs(), (CALLERS as u64 - 1) / 150 * 2, "a slot was lost");

    let times = departures(&[hundred(Algorithm::SlidingLog), Quota::per_second(60)]).await;
    // In thirds of a nanosecond, so that a sixtieth of a second is whole.
    let (unit, second) = (50_000_000u128, 3_000_000_000u128);
    let (mut full_at, mut exact): (u128, Vec<u128>) = (0, Vec::new());
    for (place, time) in times.iter().enumerate() {
        let bucket = full_at.saturating_sub(59 * unit);
        let log = place.checked_sub(RATE).map_or(0, |before| exact[before] + second);
        let at = bucket.max(log).div_ceil(3) * 3;
        full_at = full_at.max(at) + unit;
        exact.push(at);
        // The timer's are whole milliseconds, rounded up.
        assert_eq!(time.as_millis(), (at / 3).div_ceil(1_000_000), "caller {place}");
    }
}
