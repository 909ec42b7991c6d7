use proptest::{collection::vec, prelude::*};

use super::*;

const FOR_EVER: u64 = u64::MAX;

/// Slots one apart from 1 on; a waiter is its tenant's name and number.
fn enter_all(group: &mut Group<u64>, tenants: &str) -> Vec<(char, u64)> {
    let come = |(slot, tenant): (u64, char)| {
        let (id, _) = group.enter(u128::from(u32::from(tenant)), 0, slot, FOR_EVER, slot);
        (tenant, id)
    };
    (1..).zip(tenants.chars()).map(come).collect()
}

/// Tenants in the order in which they go.
fn order(mut group: Group<u64>, waiters: &[(char, u64)]) -> String {
    let mut went: Vec<_> = Vec::new();
    for now in 1..=waiters.len() as u64 {
        for (tenant, id) in waiters {
            if let Some(SlotTime::Now(slot)) = group.look(*id, now) {
                assert_eq!(slot, now);
                went.push(*tenant);
            }
        }
    }
    went.into_iter().collect()
}

fn goes(tenants: &str) -> String {
    let mut group = Group::default();
    let waiters = enter_all(&mut group, tenants);
    order(group, &waiters)
}

#[test]
fn tenants_alternate() {
    assert_eq!(goes("aaaab"), "abaaa");
    assert_eq!(goes("aaaabb"), "ababaa");
    assert_eq!(goes("aaabbbccc"), "abcabcabc");
    assert_eq!(goes("abcabc"), "abcabc");
    assert_eq!(goes("aaaa"), "aaaa");
}

#[test]
fn an_idle_tenant_saves_nothing_up() {
    let mut group = Group::default();
    let mut waiters = enter_all(&mut group, "aaaaaa");
    let went: Vec<_> = (0..4).map(|place| group.look(waiters[place].1, 4)).collect();
    assert!(went.iter().all(|turn| matches!(turn, Some(SlotTime::Now(_)))));
    waiters.drain(..4);
    // Two that come late go in turn with those who wait, not both before.
    for slot in [7, 8] {
        let (id, _) = group.enter(9, 4, slot, FOR_EVER, slot);
        waiters.push(('b', id));
    }
    let mut went = Vec::new();
    for now in 5..=8 {
        went.extend(
            waiters.iter().filter(|(_, id)| matches!(group.look(*id, now), Some(SlotTime::Now(_)))).map(|w| w.0),
        );
    }
    assert_eq!(went, ['b', 'a', 'b', 'a']);
}

#[test]
fn no_waiter_is_moved_beyond_its_deadline() {
    let mut group = Group::default();
    let patient: Vec<_> = (1..=2).map(|slot| group.enter(1, 0, slot, FOR_EVER, slot).0).collect();
    let (hurried, at) = group.enter(1, 0, 3, 3, 3);
    assert_eq!(at, 3);
    let (other, at) = group.enter(2, 0, 4, FOR_EVER, 4);
    assert_eq!(at, 4, "behind the one that cannot move");
    assert_eq!(group.look(hurried, 3), Some(SlotTime::Now(3)));
    assert_eq!(group.look(other, 3), Some(SlotTime::Later(4)));
    assert_eq!(
        patient.iter().map(|id| group.look(*id, 0)).collect::<Vec<_>>(),
        [Some(SlotTime::Later(1)), Some(SlotTime::Later(2))]
    );
}

#[test]
fn no_tenant_starves_however_many_come() {
    let mut group = Group::default();
    let (first, _) = group.enter(0, 0, 10, FOR_EVER, 10);
    let (second, at) = group.enter(0, 0, 20, FOR_EVER, 20);
    assert_eq!(at, 20);
    for n in 3..1_000u64 {
        group.enter(n.into(), 0, n * 10, FOR_EVER, n * 10);
    }
    assert_eq!(group.look(first, 0), Some(SlotTime::Later(10)));
    assert_eq!(group.look(second, 0), Some(SlotTime::Later(20 * LONGEST)));
}

#[test]
fn a_waiter_that_leaves_takes_its_slot_and_moves_no_other() {
    let mut group = Group::default();
    let waiters = enter_all(&mut group, "aab");
    assert_eq!(group.leave(waiters[2].1), Some(2));
    assert_eq!(group.leave(waiters[2].1), None);
    assert_eq!(group.look(waiters[0].1, 0), Some(SlotTime::Later(1)));
    assert_eq!(group.look(waiters[1].1, 0), Some(SlotTime::Later(3)));
    assert_eq!(group.look(waiters[2].1, 9), None);
}

#[test]
fn tenants_that_are_gone_are_forgotten() {
    let mut group = Group::default();
    let mut waiting = VecDeque::new();
    for n in 0..10_000u64 {
        waiting.push_back(group.enter(n.into(), n, n + 3, FOR_EVER, n).0);
        if waiting.len() > 3 {
            assert!(matches!(group.look(waiting.pop_front().unwrap(), n), Some(SlotTime::Now(_))));
        }
        assert!(group.tenants.len() <= 2 * 4 + KEPT + 1, "{} tenants", group.tenants.len());
    }
    waiting.into_iter().for_each(|id| assert!(group.leave(id).is_some()));
    assert!(group.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Enter { tenant: u8, gap: u8, patience: u8 },
    Leave { which: usize },
    Pass { time: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..5, 0u8..4, any::<u8>()).prop_map(|(tenant, gap, patience)| Step::Enter { tenant, gap, patience }),
        1 => any::<usize>().prop_map(|which| Step::Leave { which }),
        2 => (0u8..8).prop_map(|time| Step::Pass { time }),
    ]
}

/// A waiter as the naive model has it: everything in one list, moved by hand.
#[derive(Clone, Debug)]
struct Naive {
    id: u64,
    round: u64,
    latest: u64,
    at: u64,
}

proptest! {
    #[test]
    fn slots_are_neither_lost_nor_used_twice_and_waits_are_kept(steps in vec(step(), 1..120)) {
        let mut group = Group::<u64>::default();
        let mut model: Vec<Naive> = Vec::new();
        let (mut rounds, mut round) = (HashMap::<u8, u64>::new(), 0u64);
        let (mut now, mut last_slot, mut made) = (100u64, 100u64, 0u64);
        let (mut used, mut given_back) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Enter { tenant, gap, patience } => {
                    last_slot = last_slot.max(now) + u64::from(gap) + 1;
                    let deadline = last_slot + u64::from(patience);
                    let (id, at) = group.enter(tenant.into(), now, last_slot, deadline, made);
                    let own = rounds.get(&tenant).map_or(0, |last| last + 1).max(round);
                    rounds.insert(tenant, own);
                    let latest = deadline.min(last_slot + (last_slot - now) * (LONGEST - 1));
                    // From the back, past everybody of a later round who can
                    // take the slot behind.
                    let (mut place, mut slot) = (model.len(), last_slot);
                    while place > 0 && model[place - 1].round > own && slot <= model[place - 1].latest {
                        std::mem::swap(&mut slot, &mut model[place - 1].at);
                        place -= 1;
                    }
                    model.insert(place, Naive { id, round: own, latest, at: slot });
                    prop_assert_eq!(at, slot);
                    prop_assert!(at <= latest);
                    made += 1;
                }
                Step::Leave { which } if !model.is_empty() => {
                    let gone = model.remove(which % model.len());
                    given_back.push(group.leave(gone.id).unwrap());
                }
                Step::Leave { .. } => {}
                Step::Pass { time } => now += u64::from(time),
            }
            for waiter in std::mem::take(&mut model) {
                match group.look(waiter.id, now).unwrap() {
                    SlotTime::Later(at) => {
                        prop_assert_eq!(at, waiter.at);
                        prop_assert!(at > now && at <= waiter.latest);
                        model.push(waiter);
                    }
                    SlotTime::Now(slot) => {
                        prop_assert!(waiter.at <= now);
                        round = round.max(waiter.round);
                        used.push(slot);
                    }
                }
            }
        }
        for waiter in model {
            let Some(SlotTime::Now(slot)) = group.look(waiter.id, waiter.at) else { panic!("no slot") };
            used.push(slot);
        }
        prop_assert!(group.is_empty());
        used.extend(given_back);
        used.sort_unstable();
        prop_assert!(used.into_iter().eq(0..made), "each slot once");
    }
}
