//! What is to be reported to the store, and when: the reports that are scheduled, and
//! for each lane and hash slot those that are due and the batch that is on its way.
//!
//! Invariant: at most one batch of a stream is without a reply. It is sent again as it
//! was until the store has replied, before any other.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::time::Instant;

use crate::backend::redis::plan::{Counters, KeyReport, SyncBatch};

/// A lane, and the hash tag that its batches name.
pub(crate) type StreamId = (usize, Arc<str>);

/// The stream that reports some counters.
pub(crate) fn stream_of(counters: &Counters) -> StreamId {
    (counters.shared.lane, counters.hash_tag())
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: HashMap<StreamId, Stream, foldhash::fast::RandomState>,
    scheduled: BTreeMap<Instant, Vec<Arc<Counters>>>,
    next_number: u64,
}

#[derive(Debug, Default)]
struct Stream {
    due: Vec<Arc<Counters>>,
    /// Reports of counters that have no copy any more.
    ready: Vec<KeyReport>,
    batch: Option<Arc<SyncBatch>>,
    /// The number of the call that carries it: another one each time it is sent.
    call: u64,
    is_sent: bool,
}

/// What a stream may send.
pub(super) enum Next {
    Nothing,
    /// The batch whose reply was lost, and the number of its next call.
    Again(Arc<SyncBatch>, u64),
    New {
        number: u64,
        ready: Vec<KeyReport>,
        due: Vec<Arc<Counters>>,
    },
}

impl Streams {
    pub(super) fn schedule(&mut self, at: Instant, counters: Arc<Counters>) {
        self.scheduled.entry(at).or_default().push(counters);
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.scheduled.keys().next().copied()
    }

    /// Takes all that is scheduled until `now`.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Arc<Counters>> {
        let mut due = Vec::new();
        while let Some(first) = self.scheduled.first_entry().filter(|first| *first.key() <= now) {
            due.extend(first.remove());
        }
        due
    }

    pub(super) fn add_due(&mut self, counters: Arc<Counters>) {
        self.stream(&counters).due.push(counters);
    }

    pub(super) fn add_ready(&mut self, report: KeyReport) {
        let counters = Arc::clone(&report.counters);
        self.stream(&counters).ready.push(report);
    }

    /// Whether a report of this key, under an earlier policy, is not sent.
    pub(super) fn has_ready(&self, counters: &Counters) -> bool {
        let stream = self.streams.get(&stream_of(counters));
        stream.is_some_and(|stream| stream.ready.iter().any(|report| report.counters.key == counters.key))
    }

    fn stream(&mut self, counters: &Counters) -> &mut Stream {
        self.streams.entry(stream_of(counters)).or_default()
    }

    /// All streams that have something to send.
    pub(super) fn waiting(&self) -> Vec<StreamId> {
        let waits = |stream: &Stream| !stream.is_sent;
        self.streams.iter().filter(|(_, stream)| waits(stream)).map(|(id, _)| id.clone()).collect()
    }

    /// Takes what the stream sends next: at most `most` counters of it.
    pub(super) fn next(&mut self, id: &StreamId, most: usize) -> Next {
        let Some(stream) = self.streams.get_mut(id) else { return Next::Nothing };
        if stream.is_sent {
            return Next::Nothing;
        }
        if let Some(batch) = &stream.batch {
            self.next_number += 1;
            (stream.call, stream.is_sent) = (self.next_number, true);
            return Next::Again(Arc::clone(batch), stream.call);
        }
        let count = |tiers: &mut usize, counters: &Counters| {
            *tiers += counters.tiers().len();
            *tiers <= most
        };
        let mut tiers = 0;
        let ready = stream.ready.iter().take_while(|report| count(&mut tiers, &report.counters)).count();
        let due = stream.due.iter().take_while(|counters| count(&mut tiers, counters)).count();
        if ready + due == 0 {
            self.streams.remove(id);
            return Next::Nothing;
        }
        self.next_number += 1;
        Next::New {
            number: self.next_number,
            ready: stream.ready.drain(..ready).collect(),
            due: stream.due.drain(..due).collect(),
        }
    }

    pub(super) fn send(&mut self, id: &StreamId, batch: &Arc<SyncBatch>) {
        let stream = self.streams.entry(id.clone()).or_default();
        (stream.batch, stream.call, stream.is_sent) = (Some(Arc::clone(batch)), batch.number, true);
    }

    /// The number of the call that carries a batch.
    pub(super) fn call_of(&self, batch: &SyncBatch) -> u64 {
        let stream = self.streams.get(&(batch.lane, Arc::clone(&batch.hash_tag)));
        stream.map_or(batch.number, |stream| stream.call)
    }

    /// The batch was taken by the store, or it is not known whether it was.
    pub(super) fn on_reply(&mut self, batch: &SyncBatch, is_taken: bool) {
        let id = (batch.lane, Arc::clone(&batch.hash_tag));
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_sent = false;
        if !is_taken {
            return;
        }
        stream.batch = None;
        if stream.due.is_empty() && stream.ready.is_empty() {
            self.streams.remove(&id);
        }
    }

    pub(super) fn last_number(&self) -> u64 {
        self.next_number
    }

    /// Units of reports without a reply, and of those that have no copy any more.
    pub(super) fn unreported(&self) -> u64 {
        let of_stream = |stream: &Stream| {
            let ready = stream.ready.iter().map(KeyReport::units).fold(0, u64::saturating_add);
            stream.batch.as_ref().map_or(0, |batch| batch.units()).saturating_add(ready)
        };
        self.streams.values().map(of_stream).fold(0, u64::saturating_add)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }
}
