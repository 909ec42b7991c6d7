use proptest::prelude::*;

use super::*;

fn run(faults: Vec<Fault>, instances: usize) -> (u64, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async move {
        let quota = Quota::per_day(1_000_000_000).algorithm(Algorithm::FixedWindow);
        let mut fleet = Fleet::new(quota, Duration::from_millis(100), instances);
        let mut faults = faults.into_iter();
        fleet.faults = Box::new(move || faults.next().unwrap_or(Fault::None));
        for step in 0..1_500_u64 {
            let requests: Vec<_> = (0..instances as u64).map(|index| u64::from((step + index) % 3 == 0)).collect();
            fleet.step(&requests).await;
        }
        let unreported = |fleet: &Fleet| fleet.copies.iter().map(Copies::unreported).sum::<u64>();
        let admitted = fleet.admitted_in(0, u64::MAX);
        // A batch without a reply may have been taken.
        assert!(unreported(&fleet) + fleet.store.total >= admitted, "{} of {admitted}", fleet.store.total);
        fleet.copies.iter().for_each(|copies| _ = copies.make_all_due());
        for _ in 0..60 * DEADLINE {
            fleet.step(&vec![0; instances]).await;
        }
        assert!(fleet.copies.iter().all(Copies::is_idle), "a batch has no reply");
        assert_eq!(unreported(&fleet), 0);
        (fleet.admitted_in(0, u64::MAX), fleet.store.total)
    })
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::None),
        Just(Fault::RequestLost),
        Just(Fault::ReplyLost),
        Just(Fault::Repeated),
        Just(Fault::Late)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn each_unit_is_counted_once_whatever_becomes_of_messages(faults in prop::collection::vec(fault(), 0..40)) {
        let (admitted, counted) = run(faults, 3);
        prop_assert!(admitted > 1_000);
        prop_assert_eq!(admitted, counted);
    }
}
