use super::super::*;

#[test]
fn a_stamped_limit_is_never_less_than_the_limit() {
    for limit in [0, 1, 3, 67_108_863, 67_108_864, 67_108_865, 1 << 40, (1 << 40) + 1, u64::MAX] {
        for epoch in [0, 1, 63, 64, 200] {
            let stamp = CompactState::stamp(limit, epoch);
            assert!(stamp.limit >= limit, "{limit}");
            assert!(stamp.limit - limit <= limit >> 25, "{limit}");
            assert_eq!(stamp.epoch, WideState::stamp(limit, epoch).epoch);
            let mut state = CompactState::default();
            state.set_arrival(Arrival { stamp, nanos: 5, excess: 7, is_reserved: true });
            assert_eq!((state.arrival().nanos, state.arrival().excess), (5, 7));
            assert_eq!(state.arrival().stamp, stamp, "{limit}, {epoch}");
            assert!(state.arrival().is_reserved && widened(state).arrival().is_reserved);
            let mut wide = WideState::default();
            let stamp = WideState::stamp(limit, epoch);
            wide.set_arrival(Arrival { stamp, nanos: 5, excess: MOST_PARTS, is_reserved: false });
            assert_eq!((wide.arrival().stamp, wide.arrival().excess), (stamp, MOST_PARTS));
            assert_eq!(narrowed(widened(state)).arrival().stamp, state.arrival().stamp);
        }
    }
}
