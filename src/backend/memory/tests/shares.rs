//! The machines of an instance's share, compared with those of the whole quota.

use proptest::prelude::*;

use super::*;
use crate::{
    algorithm::{Machine, MachineOptions, Share, ShareHistory},
    backend::memory::Machines,
    fingerprint::Fingerprint,
    policy::Tier,
};

/// The machine of a share of the only quota that there is.
#[derive(Debug)]
struct OneMachine(Machine);

impl OneMachine {
    fn new(quota: &Quota, settled_late: bool, share: Share) -> Self {
        let whole = Machine::new(quota, MachineOptions { settled_late, smooth: false });
        Self(whole.share(quota, &ShareHistory::new(share), NOW).0)
    }
}

impl MachineSource for OneMachine {
    type Machines<'m> = &'m Self;

    fn with<R>(&self, _: &[Charge<'_>], _: u64, run: impl FnOnce(&Self) -> R) -> R {
        run(self)
    }

    fn with_one<R>(&self, _: Fingerprint, _: &Tier, _: u64, run: impl FnOnce(&Machine) -> R) -> R {
        run(&self.0)
    }
}

impl Machines for &OneMachine {
    fn of<'t>(&'t self, _: Fingerprint, _: &'t Tier) -> &'t Machine {
        &self.0
    }
}

fn quota() -> impl Strategy<Value = Quota> {
    let window = prop_oneof![Just(SECOND), Just(7_777_777), Just(60 * SECOND)];
    (1..10_u64, window, 1..10_u64, 0..6_usize).prop_map(|(limit, window, burst, algorithm)| {
        let algorithm = Algorithm::WINDOWED[algorithm];
        let quota = Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm);
        if algorithm.has_burst() { quota.burst(burst) } else { quota }
    })
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pass(u64),
    SetBack,
    Take { cost: u64, wait: bool },
    Add { receipt: usize, units: u64 },
    GiveBack { receipt: usize, units: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..120_u64).prop_map(Step::Pass),
        1 => Just(Step::SetBack),
        8 => (0..6_u64, any::<bool>()).prop_map(|(cost, wait)| Step::Take { cost, wait }),
        3 => (0..4_usize, 1..25_u64).prop_map(|(receipt, units)| Step::Add { receipt, units }),
        4 => (0..4_usize, 1..9_u64).prop_map(|(receipt, units)| Step::GiveBack { receipt, units }),
    ];
    prop::collection::vec(step, 1..40)
}

/// What a caller can see of a request.
fn seen(outcome: &Outcome) -> (OutcomeKind, u64, u64, bool) {
    let tier = outcome.tiers[0];
    (outcome.answer, tier.remaining, tier.reset, tier.violated)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_only_instance_decides_as_without_a_fleet(
        (quota, settle, weighted) in (quota(), any::<bool>(), any::<bool>()),
        steps in steps(),
    ) {
        let share = if weighted { Share::by_weight(0, &[1, 0]) } else { Share::equal(0, 1) };
        let whole = Bench::new(tier(quota, settle));
        let shared =
            Bench::with(Engine::new(MAX_KEYS, OneMachine::new(&quota, settle, share)), tier(quota, settle));
        let mut receipts: Vec<(Receipt, Receipt, u64)> = Vec::new();
        let mut now = NOW;
        for step in steps {
            match step {
                Step::Pass(hundredths) => now += nanos(quota.window()) * hundredths / 100 + hundredths % 2,
                Step::SetBack => now -= 3_600 * SECOND,
                Step::Take { cost, wait } => {
                    let request = Descriptor::new("/").tenant("acme").cost(cost);
                    let max_wait = if wait { u64::MAX } else { 0 };
                    let ((one, receipt), (other, of_share)) =
                        (whole.ask(&request, now, max_wait), shared.ask(&request, now, max_wait));
                    prop_assert_eq!(seen(&one), seen(&other), "{:?} of {:?}, {} later", step, quota, now as i64 - NOW as i64);
                    receipts.extend(receipt.zip(of_share).map(|(one, other)| (one, other, cost)));
                }
                Step::Add { receipt, units } => {
                    if let Some((one, other, _)) = receipts.iter().rev().nth(receipt) {
                        whole.add_debt(one, units, now);
                        shared.add_debt(other, units, now);
                    }
                }
                Step::GiveBack { receipt, units } => {
                    if let Some((one, other, cost)) = receipts.iter().rev().nth(receipt) {
                        let at = Timestamp::from_nanos(now);
                        let are_last = (whole.engine.is_last(one, at), shared.engine.is_last(other, at));
                        // A charge of nothing has nothing to refund.
                        prop_assert!(*cost == 0 || are_last.0 == are_last.1, "{:?}: {:?}", quota, are_last);
                        whole.refund_units(one, units, now);
                        shared.refund_units(other, units, now);
                    }
                }
            }
        }
    }
}
