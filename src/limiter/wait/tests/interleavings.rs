//! Every interleaving of two or three threads, by loom: `scripts/loom`.
//!
//! A waiter that is never woken is a deadlock, which loom reports.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    model::Builder,
    sync::Mutex,
    thread::{self, Thread},
};

use super::{
    fifo::WaitQueues,
    slots::{Newcomer, SlotEntry, SlotOwner, SlotQueues, SlotTime},
};
use crate::{descriptor::Priority, fingerprint::Fingerprint, time::Timestamp};

fn key() -> Fingerprint {
    Fingerprint::from_u128(7)
}

const START: Timestamp = Timestamp::from_nanos(0);

/// Runs `check` with every interleaving of up to three preemptions.
fn explore(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks the thread until the poll is ready.
fn block_on(mut poll: impl FnMut(&mut Context<'_>) -> Poll<()>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while poll(&mut Context::from_waker(&waker)).is_pending() {
        thread::park();
    }
}

/// A concurrency limit, under a lock as in the memory engine. The lock orders a
/// release and a decision, and so the loads of the queues' counter.
struct Units {
    free: Mutex<usize>,
    queues: Arc<WaitQueues>,
}

impl Units {
    fn take(&self) -> bool {
        let mut free = self.free.lock().unwrap();
        let left = free.checked_sub(1);
        *free = left.unwrap_or(0);
        left.is_some()
    }

    /// As a lease does: the unit first, then the call.
    fn release(&self) {
        *self.free.lock().unwrap() += 1;
        self.queues.call(key());
    }

    /// As a request does: it is decided, joins, and is decided when called.
    fn wait(&self) {
        if self.take() {
            return;
        }
        let entry = self.queues.join(key(), Priority::Normal, None);
        loop {
            block_on(|cx| entry.poll_called(cx));
            if self.take() {
                return;
            }
        }
    }
}

fn units(free: usize) -> Arc<Units> {
    Arc::new(Units { free: Mutex::new(free), queues: Arc::default() })
}

#[test]
fn a_waiter_learns_of_each_released_unit() {
    explore(|| {
        let units = units(0);
        let waiting = Arc::clone(&units);
        let waiter = thread::spawn(move || waiting.wait());
        units.release();
        waiter.join().unwrap();
        assert!(!units.take(), "used once");
        assert!(units.queues.are_empty());
    });
}

#[test]
fn each_waiter_gets_one_of_two_units() {
    explore(|| {
        let units = units(1);
        let threads = [(); 2].map(|()| {
            let units = Arc::clone(&units);
            thread::spawn(move || {
                units.wait();
                units.release();
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(units.take() && !units.take());
        assert!(units.queues.are_empty());
    });
}

#[test]
fn a_waiter_that_leaves_passes_its_call_on() {
    explore(|| {
        let units = units(0);
        let leaving = units.queues.join(key(), Priority::Normal, None);
        let waiting = Arc::clone(&units);
        let waiter = thread::spawn(move || waiting.wait());
        units.release();
        drop(leaving);
        waiter.join().unwrap();
        assert!(units.queues.are_empty());
    });
}

/// Keeps no free slot. The slots are numbers.
#[derive(Default)]
struct Owner {
    refunded: Mutex<Vec<u64>>,
}

impl SlotOwner<u64> for Owner {
    fn keeps(&self, _: &u64, _: bool) -> bool {
        false
    }

    fn refund(&self, slot: &u64) {
        self.refunded.lock().unwrap().push(*slot);
    }

    fn refunded(&self, _: u64) {}
}

fn enter(slots: &SlotQueues<u64>, at: u64, owner: &Owner) -> SlotEntry {
    let newcomer = Newcomer { tenant: None, now: 0, usable_from: 0, deadline: u64::MAX };
    slots.lock(key()).enter(newcomer, (Timestamp::from_nanos(at), at), owner)
}

#[test]
fn a_waiter_learns_that_its_slot_was_moved_up() {
    explore(|| {
        let slots = Arc::new(SlotQueues::default());
        let owner = Owner::default();
        let (first, mut second) = (enter(&slots, 1, &owner), enter(&slots, 2, &owner));
        let leaving = Arc::clone(&slots);
        let thread = thread::spawn(move || leaving.leave(&first, START, &Owner::default()));
        // Its timer never fires: only the call moves it up.
        while second.at() > Timestamp::from_nanos(1) {
            block_on(|cx| slots.poll_called(&second, cx));
            assert!(matches!(slots.look(&mut second, START, &owner), SlotTime::Later(_)));
        }
        thread.join().unwrap();
        let due = second.at();
        assert!(matches!(slots.look(&mut second, due, &owner), SlotTime::Now(1, 1)));
    });
}

#[test]
fn each_slot_is_used_once_or_refunded() {
    explore(|| {
        let (slots, owner) = (Arc::new(SlotQueues::default()), Arc::new(Owner::default()));
        let (mut first, second) = (enter(&slots, 1, &owner), enter(&slots, 2, &owner));
        let (leaving, arriving) = ((Arc::clone(&slots), Arc::clone(&owner)), (Arc::clone(&slots), Arc::clone(&owner)));
        let leaves = thread::spawn(move || leaving.0.leave(&second, START, &*leaving.1));
        let arrives = thread::spawn(move || enter(&arriving.0, 3, &arriving.1));
        leaves.join().unwrap();
        let mut third = arrives.join().unwrap();
        let end = Timestamp::from_nanos(9);
        let mut all = std::mem::take(&mut *owner.refunded.lock().unwrap());
        for entry in [&mut first, &mut third] {
            match slots.look(entry, end, &*owner) {
                SlotTime::Now(_, slot) => all.push(slot),
                other => panic!("{other:?}"),
            }
        }
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    });
}

/// What counts the slots, as a bucket does: only its latest slot comes back.
#[derive(Default)]
struct Counter(Mutex<u64>);

impl Counter {
    fn reserve(&self) -> u64 {
        let mut latest = self.0.lock().unwrap();
        *latest += 1;
        *latest
    }

    fn join(&self, slots: &SlotQueues<u64>) -> SlotEntry {
        let queue = slots.lock(key());
        let at = self.reserve();
        let newcomer = Newcomer { tenant: None, now: 0, usable_from: 0, deadline: u64::MAX };
        queue.enter(newcomer, (Timestamp::from_nanos(at), at), self)
    }
}

impl SlotOwner<u64> for Counter {
    fn keeps(&self, slot: &u64, _: bool) -> bool {
        *self.0.lock().unwrap() != *slot
    }

    fn refund(&self, slot: &u64) {
        let mut latest = self.0.lock().unwrap();
        *latest -= u64::from(*latest == *slot);
    }

    fn refunded(&self, _: u64) {}
}

#[test]
fn slots_of_waiters_that_leave_while_others_join_come_back() {
    explore(|| {
        let (slots, counter) = (Arc::new(SlotQueues::default()), Arc::new(Counter::default()));
        let waiting = [counter.join(&slots), counter.join(&slots)];
        let other = (Arc::clone(&slots), Arc::clone(&counter));
        let leaves = thread::spawn(move || waiting.iter().for_each(|entry| other.0.leave(entry, START, &*other.1)));
        let newcomer = counter.join(&slots);
        slots.leave(&newcomer, START, &*counter);
        leaves.join().unwrap();
        assert_eq!(*counter.0.lock().unwrap(), 0, "all slots came back");
    });
}
