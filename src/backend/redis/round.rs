//! What goes out together: the calls that it takes, and what becomes of their
//! answers.

use super::{
    batch::{Batch, MOST_KEYS, cut_short},
    calling::{Calling, Done, Work, sent, together},
    change::{Change, Moved},
    lane::Sending,
    plan::Ask,
    script::Call,
};
use crate::{
    backend::{Moving, Receipt},
    error::BackendError,
};

/// Calls that go out at once, and what has to wait for their answers.
#[derive(Default)]
pub(super) struct Round {
    calls: Vec<(Call, Sent)>,
    /// What changes move the claims of.
    receipts: Vec<(Receipt, Moving)>,
    /// Work with the place of its answer.
    later: Vec<(usize, (Work, usize))>,
}

/// What becomes of a call's answer.
enum Sent {
    /// The places of the first of each.
    Decided { places: Vec<usize>, batch: Batch },
    /// Changes, and the places of the receipts that they are of.
    Changed { changes: Vec<Change>, owners: Vec<Option<usize>> },
}

/// Requests that go out in one call: their places, themselves, and how many
/// keys they have.
type Asks = (Vec<usize>, Vec<(Ask, usize)>, usize);

/// Changes that go out in one call, with the receipts that they are of.
type Changes = (Vec<Change>, Vec<Option<usize>>);

impl Round {
    pub(super) fn new(calling: &Calling, work: Vec<(Work, usize)>) -> Self {
        let mut next = 0;
        let place = |work: (Work, usize)| {
            let place = next;
            next += work.1;
            (place, work)
        };
        Self::of(calling, work.into_iter().map(place).collect())
    }

    /// Whether there is nothing to send; perhaps not yet.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether that is because others change what it is about.
    pub(super) fn is_held_up(&self) -> bool {
        !self.later.is_empty()
    }

    /// The same, looked at anew.
    pub(super) fn again(self, calling: &Calling) -> Self {
        Self::of(calling, self.later)
    }

    /// Changes first: whoever gives something back and then asks again, finds
    /// it.
    fn of(calling: &Calling, work: Vec<(usize, (Work, usize))>) -> Self {
        let mut round = Self::default();
        let (mut changes, mut asks, mut turns) = (Vec::new(), Vec::new(), Vec::new());
        for (place, (work, count)) in work {
            match work {
                Work::Decide(ask) => add_ask(calling, &mut asks, place, (ask, count)),
                Work::Change { receipt, what, now } => {
                    let moving = if what.moves_claims() { receipt.start_moving() } else { None };
                    if what.moves_claims() && moving.is_none() {
                        // Where it stands is known only once the change before is done.
                        round.later.push((place, (Work::Change { receipt, what, now }, count)));
                        continue;
                    }
                    let mut own = Change::all(&calling.manner, &receipt, what, now);
                    calling.settle_leases(&mut own);
                    let owner = moving.is_some().then_some(round.receipts.len());
                    round.receipts.extend(moving.map(|moving| (receipt, moving)));
                    own.into_iter().for_each(|change| add_change(calling, &mut changes, change, owner));
                }
                Work::Plain(mut own) => {
                    calling.settle_leases(&mut own);
                    turns.extend(own.extract_if(.., |change| change.gives_back()));
                    own.into_iter().for_each(|change| add_change(calling, &mut changes, change, None));
                }
            }
        }
        // The last of them first: what others have built upon does not come back.
        turns.sort_by(Change::before);
        turns.into_iter().for_each(|change| add_change(calling, &mut changes, change, None));
        round.calls.extend(
            changes
                .into_iter()
                .map(|(changes, owners)| (Change::call(&changes, calling.instance), Sent::Changed { changes, owners })),
        );
        round.calls.extend(asks.into_iter().map(|(places, asks, _)| {
            let batch = Batch::new(asks);
            (batch.call(calling.instance), Sent::Decided { places, batch })
        }));
        round
    }

    /// Sends all, takes in the answers, and says what is to follow.
    pub(super) async fn send(
        self,
        calling: &Calling,
        sending: Option<Sending<Calling>>,
        answers: &mut [Option<Result<Done, BackendError>>],
    ) -> Self {
        let call = |call| calling.link.call(calling.number, call);
        let replies = match &self.calls[..] {
            [(only, _)] => vec![sent(sending, call(only)).await],
            calls => sent(sending, together(calls.iter().map(|(one, _)| call(one)))).await,
        };
        let mut later = self.later;
        for ((call, sent), reply) in self.calls.into_iter().zip(replies) {
            let bytes = match &reply {
                Ok(redis::Value::BulkString(bytes)) => Ok(bytes.as_slice()),
                Ok(_) => Err(cut_short()),
                Err(error) => Err(error.clone()),
            };
            match sent {
                Sent::Decided { places, batch } => {
                    let verdicts = bytes.and_then(|bytes| batch.read(bytes, &call));
                    take_in(calling, places, batch, verdicts, answers, &mut later);
                }
                Sent::Changed { changes, owners } => {
                    let moved = bytes.and_then(|bytes| Change::read(&changes, bytes)).ok();
                    move_claims(&self.receipts, &owners, moved.as_deref());
                    if let Some(moved) = moved {
                        calling.gave_back(changes, &moved, &owners);
                    }
                }
            }
        }
        if !self.receipts.is_empty() {
            drop(self.receipts);
            calling.moved.notify_waiters();
        }
        Self::of(calling, later)
    }
}

fn add_ask(calling: &Calling, calls: &mut Vec<Asks>, place: usize, (ask, count): (Ask, usize)) {
    let keys = Batch::keys_of(&ask);
    let fits = |(_, asks, all): &&mut Asks| {
        let (first, _) = &asks[0];
        (calling.manner.one_slot || first.tag == ask.tag)
            && (first.now, first.is_plain()) == (ask.now, ask.is_plain())
            && *all + keys <= MOST_KEYS
    };
    // The last is the likeliest, and where there is one slot the only.
    match calls.iter_mut().rev().find(fits) {
        Some((places, asks, all)) => {
            places.push(place);
            asks.push((ask, count));
            *all += keys;
        }
        None => calls.push((vec![place], vec![(ask, count)], keys)),
    }
}

fn add_change(calling: &Calling, calls: &mut Vec<Changes>, change: Change, owner: Option<usize>) {
    let fits = |(changes, _): &&mut Changes| {
        let first = &changes[0];
        (calling.manner.one_slot || first.tag == change.tag) && first.now == change.now && 2 * changes.len() < MOST_KEYS
    };
    match calls.iter_mut().rev().find(fits) {
        Some((changes, owners)) => {
            changes.push(change);
            owners.push(owner);
        }
        None => calls.push((vec![change], vec![owner])),
    }
}

/// Hands out what was said of each who asks; what the plain script could not
/// tell is asked again.
fn take_in(
    calling: &Calling,
    places: Vec<usize>,
    batch: Batch,
    verdicts: Result<Vec<super::batch::Verdict>, BackendError>,
    answers: &mut [Option<Result<Done, BackendError>>],
    later: &mut Vec<(usize, (Work, usize))>,
) {
    let (verdicts, failure) = match verdicts {
        Ok(verdicts) => (verdicts, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut verdicts = verdicts.into_iter();
    for (place, (ask, count)) in places.into_iter().zip(batch.into_asks()) {
        let mut untold = false;
        for answer in &mut answers[place..place + count] {
            *answer = match (&failure, verdicts.next()) {
                (Some(error), _) => Some(Err(error.clone())),
                (None, Some(Ok(Some(outcome)))) => {
                    let held = calling.held(&ask, &outcome);
                    Some(Ok(Done::Decided(outcome, held)))
                }
                (None, Some(Ok(None))) => {
                    untold = true;
                    None
                }
                (None, Some(Err(error))) => Some(Err(error)),
                (None, None) => Some(Err(cut_short())),
            };
        }
        if untold {
            later.push((place, (Work::Decide(Ask { is_hard: true, ..ask }), count)));
        }
    }
}

/// Writes down where claims stand now. Where that is unknown, nothing more is
/// given back.
fn move_claims(receipts: &[(Receipt, Moving)], owners: &[Option<usize>], moved: Option<&[Moved]>) {
    let mut at = 0;
    while let Some(owner) = owners.get(at) {
        let count = owners[at..].iter().take_while(|other| *other == owner).count();
        if let Some((receipt, _)) = owner.and_then(|owner| receipts.get(owner)) {
            match moved.and_then(|moved| moved.get(at..at + count)) {
                Some(moved) => Moved::write(moved, receipt),
                None => Moved::forfeit(receipt),
            }
        }
        at += count;
    }
}
