//! The system allocator with counters, which are off during timed runs.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static PEAK_BYTES: AtomicI64 = AtomicI64::new(0);

struct Counting;

impl Counting {
    /// While the counters are off, this costs one load of an unshared cache line:
    /// under 1 ns, equal for every contestant.
    fn record(allocations: u64, bytes: i64) {
        if COUNTING.load(Relaxed) {
            ALLOCATIONS.fetch_add(allocations, Relaxed);
            let live = LIVE_BYTES.fetch_add(bytes, Relaxed) + bytes;
            PEAK_BYTES.fetch_max(live, Relaxed);
        }
    }
}

/// The heap size of a block: glibc adds a word and rounds up to 16 bytes.
fn block_size(asked: usize) -> i64 {
    (asked + 8).next_multiple_of(16).max(32) as i64
}

// SAFETY: every call is handed to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::record(1, block_size(layout.size()));
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::record(1, block_size(layout.size()));
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::record(1, block_size(size) - block_size(layout.size()));
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::record(0, -(block_size(layout.size())));
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// The number of allocations counted so far. It changes only inside [`counted`].
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// Runs `work` with the counters on. Returns its result and the bytes that it
/// allocated and did not free.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let before = LIVE_BYTES.load(Relaxed);
    COUNTING.store(true, Relaxed);
    let result = work();
    COUNTING.store(false, Relaxed);
    (result, LIVE_BYTES.load(Relaxed) - before)
}

/// Runs `work` with the counters on. Returns its result and its peak memory in
/// bytes.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let before = LIVE_BYTES.load(Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    let (result, _) = counted(work);
    (result, PEAK_BYTES.load(Relaxed) - before)
}
