//! What this process uses, by the proc file system of Linux.

use std::{fmt, fs};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Resident memory.
    pub(crate) kib: usize,
    /// Open file descriptors.
    pub(crate) descriptors: usize,
}

impl Usage {
    /// Zeros where there is no such file system.
    pub(crate) fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        let descriptors = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Self { kib: kib.unwrap_or(0), descriptors }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB and {} file descriptors", self.kib >> 10, self.descriptors)
    }
}
