//! Reads a policy file without blocking on what has replaced it.
//!
//! Only regular files are read, and never more than their limit.

use std::{
    fs,
    io::{self, Read},
    path::Path,
    time::SystemTime,
};

use crate::policy_source::document::Document;

/// Metadata that differs between two versions of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileVersion {
    len: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    identity: (u64, u64, i64, i64),
}

impl FileVersion {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        Self {
            len: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            identity: (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

pub(super) fn read(path: &Path, max_bytes: usize) -> io::Result<(FileVersion, Document)> {
    // Checked before it is opened: opening some devices has side effects.
    let metadata = fs::metadata(path)?;
    if metadata.is_file() { contents(open(path)?, max_bytes) } else { Ok(not_a_file(&metadata)) }
}

/// Does not block on a pipe that has replaced the file since the check.
pub(super) fn open(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(path)
}

pub(super) fn contents(file: fs::File, max_bytes: usize) -> io::Result<(FileVersion, Document)> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(not_a_file(&metadata));
    }
    let max = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    if metadata.len() > max {
        return Ok((FileVersion::of(&metadata), Document::too_large(max_bytes)));
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((FileVersion::of(&metadata), Document::from_bytes(&bytes, max_bytes)))
}

fn not_a_file(metadata: &fs::Metadata) -> (FileVersion, Document) {
    (FileVersion::of(metadata), Document::invalid("is not a regular file"))
}
