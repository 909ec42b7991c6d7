use std::{
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use foldhash::fast::RandomState;

use super::RateLimiter;
use crate::fingerprint::Fingerprint;

/// Those who wait for a free unit of a limit on requests in flight, one line
/// for each key. Nobody knows when a unit comes back, so that it cannot be
/// reserved. Nor is a turn at a rate that may be another by then, or at
/// another limit of the same request: see `adapted::turn`.
///
/// | in line | is called | by |
/// |---|---|---|
/// | the first | once it is the first | joining, or the one before it leaving |
/// | the first | each time a unit comes back | [`Lines::call`] |
/// | the first | once another policy is in force | [`Lines::call_all`] |
/// | the first | each second, where units come of which nobody hears | itself |
/// | anyone else | never | |
///
/// Whoever is called asks for everything anew, and either goes and leaves the
/// line, or stays where it is. So one who is called and gone passes its turn
/// on, and no call is lost: a unit that comes back between asking and joining
/// is found by asking again, which who joins as the first always does.
#[derive(Debug)]
pub(super) struct Lines {
    /// How many are in any line: who gives a unit back looks no further where
    /// nobody is.
    waiting: AtomicUsize,
    next: AtomicU64,
    lines: [Mutex<HashMap<u128, Line, RandomState>>; SHARDS],
}

const SHARDS: usize = 16;

/// By number: in the order in which they came, to whichever line first.
type Line = BTreeMap<u64, Place>;

#[derive(Debug, Default)]
struct Place {
    called: bool,
    waker: Option<Waker>,
}

impl Place {
    /// To be woken once no lock is held.
    fn call(&mut self) -> Option<Waker> {
        self.called = true;
        self.waker.take()
    }
}

/// A place in line, until it is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    limiter: RateLimiter,
    key: Fingerprint,
    number: u64,
}

impl Lines {
    pub(super) fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), next: AtomicU64::new(0), lines: Default::default() }
    }

    /// Whether nobody is in any line.
    #[inline]
    pub(super) fn are_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    fn shard(&self, key: Fingerprint) -> MutexGuard<'_, HashMap<u128, Line, RandomState>> {
        self.lines[key.spread_over(SHARDS)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody waits for the key who came before `number`.
    pub(super) fn has_before(&self, key: Fingerprint, number: u64) -> bool {
        let lines = self.shard(key);
        let first = lines.get(&key.to_u128()).and_then(|line| line.keys().next());
        first.is_some_and(|first| *first < number)
    }

    /// A unit of the key has come back.
    pub(super) fn call(&self, key: Fingerprint) {
        if self.are_empty() {
            return;
        }
        let waker = self.shard(key).get_mut(&key.to_u128()).and_then(first_of).and_then(Place::call);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Another policy is in force: the first of every line asks by it, and if
    /// it goes, so does the next one.
    pub(super) fn call_all(&self) {
        if self.are_empty() {
            return;
        }
        for shard in &self.lines {
            let wakers: Vec<_> = {
                let mut lines = shard.lock().unwrap_or_else(PoisonError::into_inner);
                lines.values_mut().filter_map(|line| first_of(line).and_then(Place::call)).collect()
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

fn first_of(line: &mut Line) -> Option<&mut Place> {
    line.values_mut().next()
}

impl Ticket {
    /// The last place in the line of `key`.
    pub(super) fn join(limiter: &RateLimiter, key: Fingerprint) -> Self {
        let number = limiter.inner.lines.next.fetch_add(1, Ordering::Relaxed);
        Self::stand(limiter.clone(), key, number)
    }

    fn stand(limiter: RateLimiter, key: Fingerprint, number: u64) -> Self {
        let lines = &limiter.inner.lines;
        // Before it asks again: see `are_empty`.
        lines.waiting.fetch_add(1, Ordering::SeqCst);
        {
            let mut shard = lines.shard(key);
            let line = shard.entry(key.to_u128()).or_default();
            let is_first = line.keys().next().is_none_or(|first| *first > number);
            line.insert(number, Place { called: is_first, waker: None });
        }
        Self { limiter, key, number }
    }

    /// The place that its number has in another line: whoever came first stays
    /// first wherever it waits.
    pub(super) fn move_to(self, key: Fingerprint) -> Self {
        Self::stand(self.limiter.clone(), key, self.number)
    }

    pub(super) fn key(&self) -> Fingerprint {
        self.key
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn is_first(&self) -> bool {
        !self.limiter.inner.lines.has_before(self.key, self.number)
    }

    /// Until it is called.
    pub(super) async fn called(&self) {
        poll_fn(|cx| self.poll_called(cx)).await;
    }

    fn poll_called(&self, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        // What was there before goes once no lock is held: it may be anything.
        let _replaced = {
            let mut shard = self.limiter.inner.lines.shard(self.key);
            let line = shard.get_mut(&self.key.to_u128());
            let Some(place) = line.and_then(|line| line.get_mut(&self.number)) else { return Poll::Ready(()) };
            if std::mem::take(&mut place.called) {
                return Poll::Ready(());
            }
            place.waker.replace(waker)
        };
        Poll::Pending
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let lines = &self.limiter.inner.lines;
        let (next, _own) = {
            let mut shard = lines.shard(self.key);
            let Some(line) = shard.get_mut(&self.key.to_u128()) else { return };
            let was_first = line.keys().next() == Some(&self.number);
            let own = line.remove(&self.number);
            let next = if was_first { first_of(line).and_then(Place::call) } else { None };
            if line.is_empty() {
                shard.remove(&self.key.to_u128());
            }
            (next, own)
        };
        lines.waiting.fetch_sub(1, Ordering::SeqCst);
        if let Some(next) = next {
            next.wake();
        }
    }
}
