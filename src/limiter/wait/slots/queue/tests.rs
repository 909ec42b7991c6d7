use std::collections::HashMap;

use proptest::{collection::vec, prelude::*};

use super::{super::waiters::KEPT, *};

const FOR_EVER: u64 = u64::MAX;

impl<S> SlotQueue<S> {
    /// The waiters in order, each with its slot's time.
    fn order(&mut self) -> Vec<(u64, u64)> {
        let ids = self.waiters.iter_mut().map(|waiter| waiter.id);
        ids.zip(self.slots.iter().map(|slot| slot.at)).collect()
    }

    fn slot_of(&mut self, id: u64) -> u64 {
        self.order().into_iter().find(|(other, _)| *other == id).unwrap().1
    }
}

fn newcomer(tenant: u64, now: u64, deadline: u64) -> Newcomer {
    Newcomer { tenant: Some(tenant), now, usable_from: 0, deadline }
}

fn take(queue: &mut SlotQueue<u64>, id: u64, now: u64) -> SlotTime<u64> {
    queue.look(id, now).0
}

/// Slots one apart, from 1 on. A waiter is its tenant's name, and its id.
fn enter_all(queue: &mut SlotQueue<u64>, tenants: &str) -> Vec<(char, u64)> {
    let enter = |(slot, tenant): (u64, char)| {
        let (id, _) = queue.enter(newcomer(u32::from(tenant).into(), 0, FOR_EVER), slot, slot);
        (tenant, id)
    };
    (1..).zip(tenants.chars()).map(enter).collect()
}

/// The tenants in order of admission.
fn admit_all(mut queue: SlotQueue<u64>, waiters: &[(char, u64)]) -> String {
    let mut admitted: Vec<_> = Vec::new();
    for now in 1..=waiters.len() as u64 {
        queue.call(now);
        for (tenant, id) in waiters {
            if let SlotTime::Now(_, slot) = take(&mut queue, *id, now) {
                assert_eq!(slot, now);
                admitted.push(*tenant);
            }
        }
    }
    admitted.into_iter().collect()
}

fn order_of(tenants: &str) -> String {
    let mut queue = SlotQueue::default();
    let waiters = enter_all(&mut queue, tenants);
    admit_all(queue, &waiters)
}

#[test]
fn tenants_alternate() {
    assert_eq!(order_of("aaaab"), "abaaa");
    assert_eq!(order_of("aaaabb"), "ababaa");
    assert_eq!(order_of("aaabbbccc"), "abcabcabc");
    assert_eq!(order_of("abcabc"), "abcabc");
    assert_eq!(order_of("aaaa"), "aaaa");
}

#[test]
fn an_idle_tenant_saves_nothing_up() {
    let mut queue = SlotQueue::default();
    let mut waiters = enter_all(&mut queue, "aaaaaa");
    for (_, id) in waiters.drain(..4) {
        assert!(matches!(take(&mut queue, id, 4), SlotTime::Now(..)));
    }
    // Two that arrive late alternate with those that wait; not both are first.
    for slot in [7, 8] {
        let (id, _) = queue.enter(newcomer(9, 4, FOR_EVER), slot, slot);
        waiters.push(('b', id));
    }
    let mut admitted = Vec::new();
    for now in 5..=8 {
        let due = waiters.iter().filter(|(_, id)| matches!(take(&mut queue, *id, now), SlotTime::Now(..)));
        admitted.extend(due.map(|(tenant, _)| *tenant));
    }
    assert_eq!(admitted, ['b', 'a', 'b', 'a']);
}

#[test]
fn no_waiter_is_moved_beyond_its_deadline() {
    let mut queue = SlotQueue::default();
    let (first, second) =
        (queue.enter(newcomer(1, 0, FOR_EVER), 1, 1).0, queue.enter(newcomer(1, 0, FOR_EVER), 2, 2).0);
    let (third, at) = queue.enter(newcomer(1, 0, 3), 3, 3);
    assert_eq!(at, 3);
    let (other, at) = queue.enter(newcomer(2, 0, FOR_EVER), 4, 4);
    assert_eq!(at, 4, "behind the one that cannot be moved");
    assert_eq!(queue.order(), [(first, 1), (second, 2), (third, 3), (other, 4)]);
}

#[test]
fn no_tenant_starves_however_many_arrive() {
    let mut queue = SlotQueue::default();
    let (first, _) = queue.enter(newcomer(0, 0, FOR_EVER), 10, 10);
    let (second, at) = queue.enter(newcomer(0, 0, FOR_EVER), 20, 20);
    assert_eq!(at, 20);
    for n in 3..1_000 {
        queue.enter(newcomer(n, 0, FOR_EVER), n * 10, n * 10);
    }
    assert_eq!((queue.slot_of(first), queue.slot_of(second)), (10, 20 * LONGEST));
}

#[test]
fn a_waiter_that_leaves_moves_all_behind_it_up() {
    let mut queue = SlotQueue::default();
    let waiters: Vec<_> = (1..=5).map(|at| queue.enter(newcomer(1, 0, FOR_EVER), at, at).0).collect();
    assert_eq!(queue.leave(waiters[1], 0).0, None);
    assert_eq!(queue.order(), [(waiters[0], 1), (waiters[2], 2), (waiters[3], 3), (waiters[4], 4)]);
    assert!(queue.take_surplus(0, 0, |_, _| true).is_empty(), "the slot at 5 is kept");
    let (newcomer, at) = queue.enter(newcomer(1, 0, FOR_EVER), 6, 6);
    assert_eq!((at, queue.slot_of(newcomer)), (5, 5));
    assert_eq!(queue.take_surplus(0, 0, |_, _| false), [6]);
    // Without waiters, none is kept, and the last one is the first.
    for (id, _) in queue.order() {
        queue.leave(id, 0);
    }
    assert_eq!(queue.take_surplus(0, 9, |_, _| true), [5, 4, 3, 2, 1]);
}

#[test]
fn the_first_waiters_are_called_if_their_slots_were_moved_up() {
    let mut queue = SlotQueue::default();
    let waiters: Vec<_> = (1..=9).map(|at| queue.enter(newcomer(1, 0, FOR_EVER), at, at).0).collect();
    for (at, id) in (1..).zip(&waiters) {
        assert!(queue.poll_called(*id, at, Waker::noop().clone()).0.is_pending());
    }
    assert_eq!(queue.call(0).len(), 0);
    queue.leave(waiters[2], 0);
    assert_eq!(queue.call(0).len(), 2, "the fourth and the fifth, which are the third and the fourth now");
    assert!(queue.poll_called(waiters[3], 4, Waker::noop().clone()).0.is_ready());
    assert_eq!(take(&mut queue, waiters[3], 0), SlotTime::Later(3));
    // Called or not, each that is due by its timer is admitted.
    assert_eq!(take(&mut queue, waiters[8], 9), SlotTime::Now(9, 1));
}

#[test]
fn a_waiter_that_leaves_after_its_slot_takes_it_along() {
    let mut queue = SlotQueue::default();
    let late = 5 + USABLE + 1;
    let (first, _) = queue.enter(newcomer(1, 0, FOR_EVER), 5, 5);
    let (second, _) = queue.enter(newcomer(1, 0, FOR_EVER), 2 * late, 6);
    assert_eq!(queue.leave(first, late).0, Some(5));
    assert_eq!(queue.order(), [(second, 2 * late)]);
}

#[test]
fn a_newcomer_takes_a_slot_that_is_in_time() {
    let mut queue = SlotQueue::default();
    for at in [10, 20] {
        queue.enter(newcomer(1, 0, FOR_EVER), at, at);
    }
    // Its own slot is before those of the others, which it must not delay.
    let (hurried, at) = queue.enter(newcomer(1, 0, 15), 15, 15);
    assert_eq!((at, queue.slot_of(hurried)), (15, 15));
    assert_eq!(queue.order().iter().map(|(_, at)| *at).collect::<Vec<_>>(), [10, 15, 20]);
}

#[test]
fn tenants_without_waiters_are_forgotten() {
    let mut queue = SlotQueue::default();
    let mut waiting = VecDeque::new();
    for n in 0..10_000u64 {
        waiting.push_back(queue.enter(newcomer(n, n, FOR_EVER), n + 3, n).0);
        if waiting.len() > 3 {
            assert!(matches!(take(&mut queue, waiting.pop_front().unwrap(), n), SlotTime::Now(..)));
        }
        let tenants = queue.rounds.as_ref().unwrap().tenants.len();
        assert!(tenants <= 2 * 4 + KEPT + 1, "{tenants} tenants");
    }
    waiting.into_iter().for_each(|id| _ = queue.leave(id, 0));
    assert_eq!((queue.waiting(), queue.take_surplus(0, 0, |_, _| true).len()), (0, 3));
}

#[derive(Clone, Debug)]
enum Step {
    Enter { tenant: u8, gap: u8, slack: u8 },
    Leave { which: usize },
    Pass { time: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..5, 0u8..4, any::<u8>()).prop_map(|(tenant, gap, slack)| Step::Enter { tenant, gap, slack }),
        1 => any::<usize>().prop_map(|which| Step::Leave { which }),
        2 => (0u8..8).prop_map(|time| Step::Pass { time }),
    ]
}

/// A waiter of the naive model: a list in order, beside a sorted list of slots.
#[derive(Clone, Debug)]
struct Naive {
    id: u64,
    tenant: u8,
    round: u64,
    latest: u64,
}

proptest! {
    #[test]
    fn the_nth_waiter_has_the_nth_slot_and_none_is_lost(
        is_fair: bool,
        keeps: bool,
        steps in vec(step(), 1..120),
    ) {
        let mut queue = SlotQueue::<u64>::default();
        let (mut model, mut slots): (Vec<Naive>, Vec<u64>) = (Vec::new(), Vec::new());
        let (mut served, mut round) = (HashMap::<u8, u64>::new(), 0u64);
        // In milliseconds: a slot that is late by more is not handed on.
        let (mut now, mut last_slot, mut made) = (100 * USABLE, 100 * USABLE, 0u64);
        let (mut used, mut refunded) = (0, 0);
        for step in steps {
            match step {
                // A tenant with more waiters may have to give way.
                Step::Enter { tenant, .. } if model.iter().filter(|other| other.tenant == tenant).count() >= GREEDY => {}
                Step::Enter { tenant, gap, slack } => {
                    last_slot = last_slot.max(now) + (u64::from(gap) + 1) * USABLE;
                    let deadline = last_slot + u64::from(slack) * USABLE;
                    let tenant_of = is_fair.then(|| tenant.into());
                    let (id, at) = queue.enter(Newcomer { tenant: tenant_of, now, usable_from: 0, deadline }, last_slot, made);
                    let waiting = model.iter().filter(|other| other.tenant == tenant).map(|other| other.round);
                    let last = waiting.chain(served.get(&tenant).copied()).max();
                    let own = if is_fair { last.map_or(0, |last| last + 1).max(round) } else { 0 };
                    slots.push(last_slot);
                    slots.sort_unstable();
                    let latest = deadline.min(last_slot + (last_slot - now) * (LONGEST - 1));
                    let mut index = model.len();
                    while index > 0 && model[index - 1].round > own && slots[index] <= model[index - 1].latest {
                        index -= 1;
                    }
                    model.insert(index, Naive { id, tenant, round: own, latest });
                    prop_assert_eq!(at, slots[index]);
                    prop_assert!(at <= latest);
                    made += 1;
                }
                Step::Leave { which } if !model.is_empty() => {
                    let gone = model.remove(which % model.len());
                    prop_assert_eq!(queue.leave(gone.id, now).0, None);
                }
                Step::Leave { .. } => {}
                Step::Pass { time } => now += u64::from(time) * USABLE,
            }
            let surplus = queue.take_surplus(now, 0, |_, _| keeps);
            refunded += surplus.len();
            let free = slots.split_off(model.len());
            let kept = free.iter().filter(|at| keeps && !model.is_empty() && **at > now);
            slots.extend(kept);
            prop_assert_eq!(queue.slots.len(), slots.len());
            queue.call(now);
            // Those that wake: by their timers, or since they were called.
            while let Some(index) = (0..model.len()).find(|index| slots[*index] <= now) {
                let waiter = model.remove(index);
                let admitted = take(&mut queue, waiter.id, now);
                prop_assert!(matches!(admitted, SlotTime::Now(..)), "{:?} at {}", admitted, now);
                round = round.max(waiter.round);
                let last = served.entry(waiter.tenant).or_default();
                *last = waiter.round.max(*last);
                slots.remove(index);
                used += 1;
                queue.call(now);
            }
            for (index, waiter) in model.iter().enumerate() {
                prop_assert_eq!(queue.slot_of(waiter.id), slots[index]);
                prop_assert!(slots[index] <= waiter.latest);
            }
        }
        for waiter in model {
            queue.leave(waiter.id, now);
        }
        refunded += queue.take_surplus(now, 0, |_, _| true).len();
        prop_assert_eq!(used + refunded, usize::try_from(made).unwrap(), "each slot once");
    }
}

/// Whether a waiter that was called is polled is not known, so that later ones
/// are called as well.
#[test]
fn waiters_behind_others_that_are_not_polled_are_called() {
    let mut queue = SlotQueue::default();
    let waiters: Vec<_> = (1..=100).map(|at| queue.enter(newcomer(1, 0, FOR_EVER), at, at).0).collect();
    for (at, id) in (1..).zip(&waiters) {
        assert!(queue.poll_called(*id, at, Waker::noop().clone()).0.is_pending());
    }
    queue.leave(waiters[0], 0);
    assert_eq!(queue.call(0).len(), CALLED, "one that leaves wakes few");
    for id in &waiters[1..11] {
        queue.leave(*id, 0);
    }
    assert_eq!(queue.call(0).len(), 11, "those whose timers are more than twice as many slots away");
    assert_eq!(queue.call(0).len(), CALLED, "those that were called have not looked");
    assert_eq!(queue.call(0).len(), CALLED);
    let exact = 11 + 2 * CALLED;
    for (at, id) in (1..).zip(&waiters[11..11 + exact]) {
        assert_eq!(take(&mut queue, *id, 0), SlotTime::Later(at));
        assert!(queue.poll_called(*id, at, Waker::noop().clone()).0.is_pending());
    }
    assert_eq!(queue.call(0).len(), 0);
    assert_eq!(queue.call(exact as u64).len(), CALLED, "those that are due have not left");
    // Not all of them each time, whatever happens.
    (0..100).for_each(|_| drop(queue.call(FOR_EVER)));
    let last = queue.waiters.get_mut(waiters[11 + REACHED as usize]).unwrap().wakes_at;
    assert_eq!(last, 12 + REACHED as u64);
}

#[test]
fn a_waiter_that_leaves_unserved_gives_its_round_back() {
    let mut queue = SlotQueue::default();
    let waiters = enter_all(&mut queue, "baaaa");
    for index in [4, 2, 3] {
        queue.leave(waiters[index].1, 0);
    }
    let mut waiters = vec![waiters[0], waiters[1]];
    queue.take_surplus(0, 0, |_, _| false);
    for (slot, tenant) in (3..).zip("bba".chars()) {
        waiters.push((tenant, queue.enter(newcomer(u32::from(tenant).into(), 0, FOR_EVER), slot, slot).0));
    }
    // The second one of `a` passes the third one of `b`, as the second round does.
    assert_eq!(admit_all(queue, &waiters), "babab");
}

/// A waiter that is dismissed keeps its id until it knows.
#[test]
fn a_dismissed_waiter_is_called_and_leaves() {
    let mut queue = SlotQueue::default();
    let waiters: Vec<_> = (1..=3).map(|at| queue.enter(newcomer(1, 0, FOR_EVER), at, at).0).collect();
    assert!(queue.poll_called(waiters[2], 3, Waker::noop().clone()).0.is_pending());
    let (other, at) = queue.enter_free(newcomer(2, 0, FOR_EVER)).unwrap();
    assert_eq!((at, queue.call(0).len()), (2, 1), "the third waiter of the first tenant is dismissed");
    assert_eq!(queue.order(), [(waiters[0], 1), (other, 2), (waiters[1], 3)]);
    assert_eq!(queue.enter_free(newcomer(2, 0, FOR_EVER)), None, "the other one has as many as it would have");
    for id in [waiters[0], other, waiters[1]] {
        queue.leave(id, 0);
    }
    assert_eq!((queue.waiting(), queue.is_empty()), (0, false));
    assert!(queue.poll_called(waiters[2], 3, Waker::noop().clone()).0.is_ready());
    assert_eq!(take(&mut queue, waiters[2], 0), SlotTime::Lost);
    assert!(queue.is_empty());
}

#[test]
fn a_waiter_that_cannot_be_moved_gives_way_only_if_its_tenant_has_far_more() {
    for (waiters, expected) in [(GREEDY, 1 + GREEDY as u64), (1 + GREEDY, 2)] {
        let mut queue = SlotQueue::default();
        for at in 1..=waiters as u64 {
            queue.enter(newcomer(1, 0, at), at, at);
        }
        let brought = 1 + waiters as u64;
        let (_, at) = queue.enter(newcomer(2, 0, FOR_EVER), brought, brought);
        assert_eq!(at, expected, "{waiters} waiters");
    }
}

/// Slots before the end of a cooldown stay with those that had them before it.
#[test]
fn slots_before_the_end_of_a_cooldown_are_not_handed_on() {
    let mut queue = SlotQueue::default();
    let before: Vec<_> = (1..=3).map(|at| queue.enter(newcomer(1, 0, FOR_EVER), at, at).0).collect();
    queue.enter(newcomer(1, 0, FOR_EVER), 6, 6);
    let during = Newcomer { usable_from: 5, ..newcomer(2, 0, FOR_EVER) };
    assert_eq!(queue.cool_down(during.usable_from).count(), 0, "none is free");
    let (hurried, at) = queue.enter(during, 7, 7);
    assert_eq!(at, 6, "it passes no waiter whose slot is before the end");
    assert_eq!(queue.leave(before[1], 0).0, Some(1));
    assert_eq!(queue.order()[..2], [(before[0], 2), (before[2], 3)]);
    assert_eq!(queue.slot_of(hurried), 6);
    for (id, _) in queue.order() {
        queue.leave(id, 0);
    }
    queue.enter(newcomer(1, 0, FOR_EVER), 8, 8);
    assert_eq!(queue.free(), 2, "those at 7 and 8");
    assert_eq!(queue.cool_down(8).collect::<Vec<_>>(), [7]);
}

/// However many of the first waiters are not polled, the timers of those behind
/// them follow their slots; at an amortised cost.
#[test]
fn waiters_behind_any_number_of_others_are_called() {
    const STUCK: usize = 500;
    const ALL: usize = 4_000;
    let mut queue = SlotQueue::default();
    let mut waiters: Vec<_> = (1..=ALL as u64).map(|at| queue.enter(newcomer(1, 0, FOR_EVER), at, at).0).collect();
    let listen = |queue: &mut SlotQueue<u64>, id: u64| loop {
        let wakes_at = queue.waiters.get_mut(id).unwrap().wakes_at;
        if queue.poll_called(id, wakes_at, Waker::noop().clone()).0.is_pending() {
            return;
        }
    };
    waiters[STUCK..].iter().for_each(|id| listen(&mut queue, *id));
    let mut calls = 0;
    while waiters.len() > STUCK + 10 {
        let gone = waiters.remove(STUCK);
        queue.leave(gone, 0);
        calls += queue.call(0).len();
        for (position, id) in (0..).zip(&waiters).skip(STUCK) {
            let waiter = queue.waiters.get_mut(*id).unwrap();
            let wakes_at = waiter.wakes_at;
            if waiter.waker.is_none() {
                assert!(matches!(queue.look(*id, 0), (SlotTime::Later(_), _)));
                listen(&mut queue, *id);
            }
            assert!(wakes_at <= 3 * (position + 1), "position {position} wakes at {wakes_at}");
        }
    }
    assert!(calls <= 4 * ALL, "{calls} calls");
}

/// A queue that is never empty keeps no memory of those that have left.
#[test]
fn memory_shrinks_with_the_waiters() {
    let mut queue = SlotQueue::default();
    let mut waiting: VecDeque<_> = (1..=10_000).map(|at| queue.enter(newcomer(at, 0, FOR_EVER), at, at).0).collect();
    for id in waiting.drain(..9_950) {
        queue.leave(id, 0);
    }
    // Those that waited are served, while others arrive.
    for at in 10_001..=10_100 {
        waiting.push_back(queue.enter(newcomer(at, 0, FOR_EVER), at, at).0);
        assert!(matches!(take(&mut queue, waiting.pop_front().unwrap(), at), SlotTime::Now(..)));
        queue.take_surplus(0, 0, |_, _| false);
    }
    let tenants = queue.rounds.as_ref().unwrap().tenants.capacity();
    let capacities = [queue.slots.capacity(), tenants];
    assert_eq!(queue.waiting(), 50);
    assert!(capacities.iter().all(|capacity| *capacity <= 1_000), "{capacities:?}");
}

/// Slots one apart, from 1 on; the first waiter leaves, so that the last slot is free.
fn with_a_free_slot() -> SlotQueue<u64> {
    let mut queue = SlotQueue::default();
    let waiters = enter_all(&mut queue, "aaaaa");
    queue.leave(waiters[0].1, 0);
    assert_eq!((queue.waiting(), queue.free()), (4, 1));
    queue
}

#[test]
fn a_free_slot_is_taken_only_by_a_newcomer_that_can_use_it() {
    let free = |now, usable_from, deadline| {
        let mut queue = with_a_free_slot();
        let entered = queue.enter_free(Newcomer { tenant: Some(97), now, usable_from, deadline });
        assert_eq!(queue.waiting(), if entered.is_some() { 5 } else { 4 });
        entered.map(|(_, at)| at)
    };
    assert_eq!(free(4, 5, 5), Some(5));
    assert_eq!(free(4, 5, 4), None, "it does not wait so long");
    assert_eq!(free(4, 6, 9), None, "it cools down until then");
    assert_eq!(free(5, 0, 9), None, "it is over");
}

#[test]
fn a_greedier_tenant_gives_way_to_a_newcomer_that_waits_for_its_last_slot() {
    for (deadline, is_in_time) in [(4, false), (5, true), (6, true)] {
        let mut queue = SlotQueue::default();
        enter_all(&mut queue, "aaaaa");
        let entered = queue.enter_free(newcomer(u64::from(u32::from('b')), 0, deadline));
        assert_eq!(entered.is_some(), is_in_time, "a deadline of {deadline}");
    }
}

#[test]
fn a_newcomer_passes_others_of_its_round_only_where_it_could_not_wait_otherwise() {
    let at = |deadline| {
        let mut queue = SlotQueue::default();
        for slot in [1, 5] {
            queue.enter(Newcomer { tenant: None, now: 0, usable_from: 0, deadline: FOR_EVER }, slot, slot);
        }
        queue.enter(Newcomer { tenant: None, now: 0, usable_from: 0, deadline }, 3, 3).1
    };
    assert_eq!(at(6), 5);
    assert_eq!(at(5), 5, "the last slot is in time");
    assert_eq!(at(4), 3, "it keeps the one that it brought");
}

/// A waiter that is due, but not polled, keeps its slot when others leave.
#[test]
fn a_waiter_that_leaves_takes_no_slot_of_one_that_is_due() {
    const SECOND: u64 = 1_000_000_000;
    let mut queue = SlotQueue::default();
    let enter = |queue: &mut SlotQueue<u64>, at| queue.enter(newcomer(1, 0, FOR_EVER), at, at).0;
    let waiters = [1, 2, 3].map(|second| enter(&mut queue, second * SECOND));
    let now = SECOND * 3 / 2;
    assert!(matches!(queue.leave(waiters[2], now), (None, _)));
    assert_eq!(take(&mut queue, waiters[0], now), SlotTime::Now(SECOND, SECOND));
    assert_eq!(take(&mut queue, waiters[1], 2 * SECOND), SlotTime::Now(2 * SECOND, 2 * SECOND));
}
