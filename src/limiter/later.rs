//! What is left to do before a decision holds.

use std::{future::Future, pin::Pin};

use tokio::time::Instant;

use super::{
    Lease,
    fair::{self, Newcomer},
    hold::{Shadow, Wait},
    room::Waiter,
    timer::sleep_until,
};
use crate::{decision::Decision, time::nanos};

/// What is left to do before a decision holds; nearly always nothing.
pub(crate) type Decided = Option<Box<Unfinished>>;

pub(crate) const DONE: Decided = None;

/// It is still to be made.
pub(super) fn pending(deciding: Deciding) -> Decided {
    Some(Box::new(Unfinished::Pending(deciding)))
}

pub(crate) enum Unfinished {
    /// The request goes, and holds something meanwhile.
    Held(Lease),
    /// The request goes after its wait.
    Reserved(Reservation),
    /// The decision is still to be made.
    Pending(Deciding),
}

/// A decision to be made: by a backend that takes its time, or once a place
/// in flight is free.
pub(crate) type Deciding = Pin<Box<dyn Future<Output = (Decision, Decided)> + Send>>;

/// All that is left to do, waits and all. Dropped before it is done, it gives
/// back what it holds.
pub(crate) type Finishing = Pin<Box<dyn Future<Output = (Decision, Option<Lease>)> + Send>>;

impl Unfinished {
    /// What a request holds that goes at once; else what is to be waited for.
    #[allow(clippy::boxed_local, reason = "it comes in a box")]
    pub(crate) fn held(self: Box<Self>) -> Result<Lease, Box<Self>> {
        match *self {
            Self::Held(hold) => Ok(hold),
            other => Err(Box::new(other)),
        }
    }

    /// Waits until the request goes, or is rejected.
    ///
    /// A loop, and nothing within one another: a key may be held back any
    /// number of times while one waits. Nor is anything moved out of its box,
    /// for it would be kept twice: there may be a hundred thousand of these.
    pub(crate) fn finish(self: Box<Self>, mut decision: Decision) -> Finishing {
        let mut unfinished = self;
        Box::pin(async move {
            loop {
                let next = match &mut *unfinished {
                    Self::Held(_) => break,
                    Self::Reserved(reservation) => {
                        let moved = reservation.turn().await;
                        match reservation.another_turn() {
                            Some(next) => next,
                            None => {
                                if moved > 0 {
                                    let wait = nanos(decision.wait()).saturating_add(moved);
                                    decision.admit(decision.decided_at(), wait);
                                }
                                break;
                            }
                        }
                    }
                    Self::Pending(deciding) => deciding.as_mut().await,
                };
                match next {
                    (next, None) => return (next, None),
                    (next, Some(rest)) => (decision, unfinished) = (next, rest),
                }
            }
            (decision, unfinished.kept())
        })
    }

    /// What a request holds whose turn has come.
    #[allow(clippy::boxed_local, reason = "it comes in a box")]
    fn kept(self: Box<Self>) -> Option<Lease> {
        match *self {
            Self::Held(hold) => Some(hold),
            Self::Reserved(reservation) => reservation.keep(),
            Self::Pending(_) => None,
        }
    }
}

/// A place in the future. Dropped before its turn, it is given back.
#[derive(Debug)]
pub(crate) struct Reservation {
    place: Place,
    /// Whether what was charged is held on to once it goes.
    keeps: bool,
    shadows: Vec<Shadow>,
    waiter: Option<Waiter>,
}

#[derive(Debug)]
enum Place {
    /// At the time that was reserved.
    Fixed(Slot),
    /// By turns with others.
    Fair(fair::Place),
}

/// A hold that is refunded unless it is taken out.
#[derive(Debug)]
pub(crate) struct Slot(Option<Lease>);

impl Slot {
    pub(crate) fn new(hold: Option<Lease>) -> Self {
        Self(hold.map(Lease::waits))
    }

    /// The request goes.
    pub(crate) fn take(mut self) -> Option<Lease> {
        self.0.take()
    }

    /// The request was to go, but has not yet, and its key is held back now:
    /// it takes another turn, or is rejected where it may not wait for that.
    pub(crate) fn another_turn(&mut self) -> Option<(Decision, Decided)> {
        let (hold, shadows) = self.leave_if_cooling_down()?;
        take_another_turn(&hold, shadows)
    }

    /// First it leaves, so that it stands in nobody's way. What is on trial
    /// keeps what it has charged, which is charged once.
    fn leave_if_cooling_down(&mut self) -> Option<(Lease, Vec<Shadow>)> {
        let hold = self.0.as_ref()?;
        let (wait, limiter) = (hold.wait()?, hold.limiter());
        let cooldown = &limiter.inner.cooldowns;
        let until = cooldown.until(hold.receipt().charges(), limiter.now())?;
        // Of turns that are exchanged, one may be before the end of what its
        // request came behind.
        if until <= wait.behind.min(hold.receipt().at()) {
            cooldown.slept_out(hold.receipt().charges(), until);
            return None;
        }
        let mut hold = self.0.take()?;
        let shadows = hold.take_shadows();
        hold.refund();
        Some((hold, shadows))
    }
}

fn take_another_turn(hold: &Lease, shadows: Vec<Shadow>) -> Option<(Decision, Decided)> {
    let (Wait { terms, since, .. }, limiter) = (hold.wait()?, hold.limiter());
    let next = limiter.another_turn(hold.receipt(), since.unwrap_or_else(Instant::now), terms);
    Some(limiter.still_with(shadows, next))
}

impl Reservation {
    pub(super) fn new(hold: Lease, keeps: bool, waiter: Option<Waiter>) -> Self {
        Self { place: Place::Fixed(Slot(Some(hold))), keeps, shadows: Vec::new(), waiter }
    }

    /// Takes turns with others who wait for the same counter; `decision` then
    /// says when it goes as it stands.
    pub(super) fn by_turns(hold: Lease, keeps: bool, waiter: Option<Waiter>, newcomer: Newcomer<'_>) -> (Self, u64) {
        let limiter = hold.limiter().clone();
        let (place, at) = fair::Place::enter(&limiter, newcomer, hold);
        (Self { place: Place::Fair(place), keeps, shadows: Vec::new(), waiter }, at)
    }

    /// Its turn has come, but its key is held back now: it takes another one,
    /// or is rejected where it may not wait for that.
    fn another_turn(&mut self) -> Option<(Decision, Decided)> {
        let Place::Fixed(slot) = &mut self.place else { return None };
        let (hold, mut shadows) = slot.leave_if_cooling_down()?;
        shadows.append(&mut self.shadows);
        self.waiter = None;
        take_another_turn(&hold, shadows)
    }

    /// Holds these as well.
    pub(super) fn with(self, shadows: Vec<Shadow>) -> Self {
        Self { shadows, keeps: true, ..self }
    }

    /// Waits for its turn; by how much, in nanoseconds, it was moved back
    /// meanwhile.
    async fn turn(&mut self) -> u64 {
        match &mut self.place {
            Place::Fixed(Slot(Some(hold))) => sleep_until(hold.receipt().at(), || hold.limiter().now()).await,
            Place::Fixed(Slot(None)) => {}
            Place::Fair(place) => {
                let (hold, moved) = place.turn().await;
                self.place = Place::Fixed(Slot(hold));
                return moved;
            }
        }
        0
    }

    /// Its turn has come: nothing is given back.
    pub(crate) fn keep(self) -> Option<Lease> {
        let hold = match self.place {
            Place::Fixed(mut slot) => slot.0.take(),
            Place::Fair(place) => place.take(),
        };
        let keeps = self.keeps;
        hold.map(|hold| if keeps { hold.goes().with(self.shadows) } else { hold })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take() {
            hold.refund();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{descriptor::Descriptor, limiter::RateLimiter, quota::Quota};

    #[test]
    fn a_waiter_takes_little_memory() {
        let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
        let waits = || {
            let mut decision = Decision::unlimited();
            let unfinished = limiter.claim(&Descriptor::new("/"), Duration::MAX, &mut decision);
            unfinished.unwrap().finish(decision)
        };
        drop(waits());
        let size = size_of_val(&*waits());
        assert!(size <= 640, "{size} bytes");
    }
}
