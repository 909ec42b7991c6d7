use super::*;

#[tokio::test(start_paused = true)]
async fn the_remaining_time_falls_to_zero_and_never_overflows() {
    let deadline = Deadline::after(Duration::from_secs(2));
    assert_eq!(deadline, Deadline::at(Instant::now() + Duration::from_secs(2)));
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(deadline.remaining(), Duration::from_millis(1_500));
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(deadline.remaining(), Duration::ZERO);
    assert_eq!(Deadline::after(Duration::MAX).remaining(), Duration::MAX);
}
