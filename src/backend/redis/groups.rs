//! Charge sets and changes by the call that they fit in, and what becomes of the reply.
//! It sends nothing.
//!
//! Invariant: all of a group is in one hash slot, and of one time.

use super::{
    executor::{ClaimMove, Completion, Operation, ScriptExecutor},
    plan::{Change, ChargeSet, ClaimUpdate, Decider},
    wire::{decode, encode, malformed_reply},
};
use crate::error::BackendError;

/// An operation, and the results that it has.
pub(super) struct Item {
    pub(super) operation: Operation,
    pub(super) first: usize,
    pub(super) count: usize,
}

/// The charge sets of one call.
#[derive(Default)]
pub(super) struct ChargeGroup {
    pub(super) sets: Vec<(ChargeSet, usize)>,
    /// The first result of each.
    pub(super) firsts: Vec<usize>,
    keys: usize,
    /// When leased units were asked for, on the limiter's clock: before the store
    /// decides.
    pub(super) sent: Vec<u64>,
    /// The changes that the same call makes first: only where it leases.
    pub(super) changes: ChangeGroup,
}

/// The changes of one call.
#[derive(Default)]
pub(super) struct ChangeGroup {
    pub(super) changes: Vec<Change>,
    /// The index of the receipt that owns each.
    owners: Vec<Option<usize>>,
    /// The index of the result of each that is answered.
    answers: Vec<Option<usize>>,
}

/// Groups charge sets and changes by the call that they fit in.
#[derive(Default)]
pub(super) struct Groups {
    pub(super) charges: Vec<ChargeGroup>,
    pub(super) changes: Vec<ChangeGroup>,
}

impl Groups {
    pub(super) fn add_charges(&mut self, set: ChargeSet, first_result: usize, count: usize) {
        let keys = encode::max_keys(&set);
        let fits = |group: &ChargeGroup| {
            let (first, _) = &group.sets[0];
            first.hash_tag == set.hash_tag
                && (first.now, first.decider()) == (set.now, set.decider())
                && group.keys + keys <= encode::MAX_KEYS
        };
        // The last group is the likeliest, and without a cluster the only one.
        let group = last_or_new(&mut self.charges, fits);
        group.firsts.push(first_result);
        group.sets.push((set, count));
        group.keys += keys;
    }

    /// Puts changes into the call that leases in the same hash slot, if there is one:
    /// what is given back is leased again, and takes no call of its own.
    pub(super) fn join(&mut self) {
        for charges in &mut self.charges {
            let (first, _) = &charges.sets[0];
            let fits = |changes: &ChangeGroup| {
                let change = &changes.changes[0];
                (&change.charge.hash_tag, change.now) == (&first.hash_tag, first.now)
                    && charges.keys + 3 * changes.changes.len() <= encode::MAX_KEYS
            };
            if first.decider() == Decider::Lease
                && let Some(at) = self.changes.iter().position(fits)
            {
                charges.changes = self.changes.remove(at);
            }
        }
        // Changes are before all charges.
        self.charges.sort_by_key(|charges| charges.changes.changes.is_empty());
    }

    pub(super) fn add_change(&mut self, change: Change, owner: Option<usize>, answer: Option<usize>) {
        let fits = |group: &ChangeGroup| {
            let first = &group.changes[0];
            first.charge.hash_tag == change.charge.hash_tag
                && first.now == change.now
                && 2 * group.changes.len() < encode::MAX_KEYS
        };
        let group = last_or_new(&mut self.changes, fits);
        group.changes.push(change);
        group.owners.push(owner);
        group.answers.push(answer);
    }
}

/// The last group that fits, or a new one.
fn last_or_new<G: Default>(groups: &mut Vec<G>, fits: impl FnMut(&G) -> bool) -> &mut G {
    let index = groups.iter().rposition(fits);
    let index = index.unwrap_or_else(|| {
        groups.push(G::default());
        groups.len() - 1
    });
    &mut groups[index]
}

impl ChargeGroup {
    /// Sets the result of each request, and defers what only `decide.lua` can
    /// decide.
    pub(super) fn complete(
        self,
        executor: &ScriptExecutor,
        decided: Result<Vec<decode::Decided>, BackendError>,
        results: &mut [Option<Result<Completion, BackendError>>],
        deferred: &mut Vec<Item>,
    ) {
        let (decided, failure) = match decided {
            Ok(decided) => (decided, malformed_reply()),
            Err(error) => (Vec::new(), error),
        };
        let mut decided = decided.into_iter();
        for (first, (set, count)) in self.firsts.into_iter().zip(self.sets) {
            let mut is_undecided = false;
            for result in &mut results[first..first + count] {
                *result = match decided.next() {
                    Some(Ok(Some(outcome))) => {
                        let guard = executor.guard(&set, &outcome);
                        Some(Ok(Completion::Charged(outcome, guard)))
                    }
                    Some(Ok(None)) => {
                        is_undecided = true;
                        None
                    }
                    Some(Err(error)) => Some(Err(error)),
                    None => Some(Err(failure.clone())),
                };
            }
            if is_undecided {
                let operation = Operation::Charge(ChargeSet { needs_decide: true, ..set });
                deferred.push(Item { operation, first, count });
            }
        }
    }
}

impl ChangeGroup {
    /// Sets the results of changes that are answered, and updates the claims of the
    /// receipts that they are of.
    pub(super) fn complete(
        self,
        executor: &ScriptExecutor,
        receipts: &[ClaimMove],
        updates: Result<Vec<ClaimUpdate>, BackendError>,
        results: &mut [Option<Result<Completion, BackendError>>],
    ) {
        self.answer(&updates, results);
        let updates = updates.ok();
        self.update_claims(receipts, updates.as_deref());
        if let Some(updates) = updates {
            let is_owned = self.owners.iter().map(Option::is_some);
            let changes = self.changes.into_iter().zip(updates).zip(is_owned);
            executor.retry_refunds(changes.map(|((change, update), is_owned)| (change, update, is_owned)));
        }
    }

    /// Sets the results of changes that are answered: one that failed is an error.
    fn answer(
        &self,
        updates: &Result<Vec<ClaimUpdate>, BackendError>,
        results: &mut [Option<Result<Completion, BackendError>>],
    ) {
        for (index, answer) in self.answers.iter().enumerate() {
            let Some(result) = answer.and_then(|answer| results.get_mut(answer)) else { continue };
            let error = match updates {
                Ok(updates) if updates.get(index).is_some_and(ClaimUpdate::is_done) => continue,
                Ok(_) => decode::foreign_key(Some(&self.changes[index].charge.key)),
                Err(error) => error.clone(),
            };
            *result = Some(Err(error));
        }
    }

    /// Updates the claims of the receipts. Without a reply they are forfeited.
    fn update_claims(&self, receipts: &[ClaimMove], updates: Option<&[ClaimUpdate]>) {
        let mut start = 0;
        for owners in self.owners.chunk_by(PartialEq::eq) {
            let end = start + owners.len();
            if let Some(ClaimMove { receipt, .. }) = owners[0].and_then(|owner| receipts.get(owner)) {
                match updates.and_then(|updates| updates.get(start..end)) {
                    Some(updates) => ClaimUpdate::apply(updates, receipt),
                    None => ClaimUpdate::forfeit(receipt),
                }
            }
            start = end;
        }
    }
}
