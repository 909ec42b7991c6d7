use super::*;

#[test]
fn a_stamped_limit_is_never_less_than_the_limit() {
    for limit in [0, 1, 3, 67_108_863, 67_108_864, 67_108_865, 1 << 40, (1 << 40) + 1, u64::MAX] {
        for epoch in [0, 1, 63, 64, 200] {
            let stamp = Stamp::new(limit, epoch);
            assert!(stamp.limit() >= limit, "{limit}");
            assert!(stamp.limit() - limit <= limit >> 25, "{limit}");
            assert!(stamp.has_epoch_of(Stamp::new(limit + u64::from(limit < 5), epoch)), "{limit}, {epoch}");
            assert!(!stamp.has_epoch_of(Stamp::new(limit, epoch + 1)), "{limit}, {epoch}");
        }
    }
}
