//! The memory of all logs of a store: [`LogMemory`], and each log's share of it.
//!
//! It counts bytes and allocates none. Invariant: what a log counts is released
//! when the log is dropped.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The bytes that the logs of a store use, and may use.
#[derive(Debug)]
pub(crate) struct LogMemory {
    used: AtomicUsize,
    max: usize,
}

impl LogMemory {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), max })
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// The bytes that one log counts.
#[derive(Debug, Default)]
pub(super) struct LogShare {
    /// `None` before the log is counted.
    memory: Option<Arc<LogMemory>>,
    bytes: usize,
}

impl LogShare {
    /// Whether so many bytes more are within the bound.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let memory = self.memory.as_ref();
        memory.is_none_or(|memory| memory.used.load(Ordering::Relaxed).saturating_add(bytes) <= memory.max)
    }

    /// Counts `bytes` instead of what was counted before.
    pub(super) fn set(&mut self, memory: &Arc<LogMemory>, bytes: usize) {
        if bytes == self.bytes {
            return;
        }
        let memory = self.memory.get_or_insert_with(|| Arc::clone(memory));
        memory.used.fetch_add(bytes, Ordering::Relaxed);
        memory.used.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }
}

impl Drop for LogShare {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}
