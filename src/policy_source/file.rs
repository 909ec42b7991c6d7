//! A policy in a file: [`FileSource`].
//!
//! Changes are seen by file system events, and by polling where there are none: events only
//! signal that the file may have changed, and may be missing. Invariants: every file system
//! call runs on a blocking thread, and at most one read and one check are under way, so a file
//! system that hangs costs two threads; only regular files are read, and never more than their
//! limit.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::{
    sync::Notify,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use super::{DEFAULT_MAX_BYTES, Document, MIN_POLL_INTERVAL, PolicySource, SourceError};

/// A policy in a YAML file.
///
/// Changes are seen at once by file system events of the file's folder and of
/// the folders of all links that lead to it. Where the system sends no events,
/// as network file systems do, polling sees them within a second. Seen are: a
/// file replaced by a rename (the recommended way: write beside it, then
/// rename), a file written in place, a link that is pointed elsewhere, and the
/// volumes of Kubernetes ConfigMaps, whose folder `..data` is such a link.
///
/// A file is read once no event has arrived for 25 ms, and after 250 ms at the
/// latest.
///
/// ```no_run
/// use std::time::Duration;
/// use tower_ratelimit::policy_source::FileSource;
///
/// let source = FileSource::new("/etc/limits/policy.yaml").poll_interval(Duration::from_millis(200));
/// ```
#[derive(Debug)]
#[must_use]
pub struct FileSource {
    path: PathBuf,
    poll_interval: Duration,
    max_bytes: usize,
    changed: Arc<Notify>,
    /// `None` while a read uses it, and before the first.
    events: Option<FolderEvents>,
    reading: Option<JoinHandle<FileRead>>,
    checking: Option<JoinHandle<io::Result<FileVersion>>>,
    /// The version reported last; `None` before the first and after an error.
    reported: Option<FileVersion>,
}

/// The events of the folders that lead to the file, and what was read.
type FileRead = (FolderEvents, io::Result<(FileVersion, Document)>);

/// How long a file has to be without events before it is read, and how long
/// that is waited for.
const QUIET: Duration = Duration::from_millis(25);
const MAX_QUIET_WAIT: Duration = Duration::from_millis(250);

/// The timeout of a read, and of a check of the metadata.
const TIMEOUT: Duration = Duration::from_secs(5);

impl FileSource {
    /// The file at `path`. It need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            poll_interval: Duration::from_secs(1),
            max_bytes: DEFAULT_MAX_BYTES,
            changed: Arc::default(),
            events: None,
            reading: None,
            checking: None,
            reported: None,
        }
    }

    /// How often to check the file's metadata where the system sends no events:
    /// every second by default, at least 10 ms.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(MIN_POLL_INTERVAL);
        self
    }

    /// The largest file that is accepted, in bytes: 1 MiB by default.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Waits until the file may differ from the version reported last.
    async fn changed(&mut self, reported: &FileVersion) -> Result<(), SourceError> {
        loop {
            if timeout(self.poll_interval, self.changed.notified()).await.is_ok() {
                let quiet = async { while timeout(QUIET, self.changed.notified()).await.is_ok() {} };
                let _ = timeout(MAX_QUIET_WAIT, quiet).await;
                return Ok(());
            }
            let checking = self.checking.get_or_insert_with(|| {
                let path = self.path.clone();
                spawn_blocking(move || fs::metadata(path).map(|metadata| FileVersion::of(&metadata)))
            });
            let Ok(version) = timeout(TIMEOUT, checking).await else {
                return Err(SourceError::new(format!("was not looked at within {TIMEOUT:?}")));
            };
            self.checking = None;
            if !matches!(version, Ok(Ok(version)) if version == *reported) {
                return Ok(());
            }
        }
    }

    /// A read that outlives its timeout is awaited by the next call, so that a
    /// file system that hangs takes one thread.
    async fn read(&mut self) -> Result<(FileVersion, Document), SourceError> {
        let reading = self.reading.get_or_insert_with(|| {
            let mut events = self.events.take().unwrap_or_else(|| FolderEvents::new(&self.changed));
            let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
            let max_bytes = self.max_bytes;
            spawn_blocking(move || {
                // Before the read, so that no change is missed.
                events.follow(&path);
                let found = read(&path, max_bytes);
                (events, found)
            })
        });
        let Ok(read) = timeout(TIMEOUT, reading).await else {
            return Err(SourceError::new(format!("was not read within {TIMEOUT:?}")));
        };
        self.reading = None;
        // An earlier check may hang for good.
        self.checking = None;
        let (events, found) = read.map_err(SourceError::new)?;
        self.events = Some(events);
        found.map_err(SourceError::new)
    }
}

impl PolicySource for FileSource {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<Document>, SourceError>> {
        Box::pin(async {
            if let Some(reported) = self.reported.take() {
                self.changed(&reported).await?;
            }
            let (version, document) = self.read().await?;
            self.reported = Some(version);
            Ok(Some(document))
        })
    }
}

/// File system events of all folders on the path. Without a watcher, polling is
/// all there is.
#[derive(Debug)]
struct FolderEvents {
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
}

impl FolderEvents {
    fn new(changed: &Arc<Notify>) -> Self {
        let changed = Arc::clone(changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| !is_read(event.kind)) {
                changed.notify_one();
            }
        });
        Self { watcher: watcher.ok(), folders: BTreeSet::new() }
    }

    #[cfg(test)]
    fn none() -> Self {
        Self { watcher: None, folders: BTreeSet::new() }
    }

    /// Subscribes again: links may point elsewhere, and folders may have been
    /// replaced.
    fn follow(&mut self, path: &Path) {
        let Some(watcher) = &mut self.watcher else { return };
        let folders = folders(path);
        for gone in self.folders.difference(&folders) {
            // Fails if the folder was deleted, which is fine.
            let _ = watcher.unwatch(gone);
        }
        for folder in &folders {
            let _ = watcher.watch(folder, RecursiveMode::NonRecursive);
        }
        self.folders = folders;
    }
}

/// Our own reads must not trigger another read.
fn is_read(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// The most links that are followed: as many as Linux follows.
const MAX_LINKS: usize = 40;

/// The folder of the file that the path leads to, and those of all links on the
/// way, as far as they exist. None of them is a link itself.
fn folders(path: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut links) = (BTreeSet::new(), BTreeSet::new());
    // Each with whether it is a link to the file, or to a folder on the way.
    let mut ahead = vec![(path.to_owned(), true)];
    while let Some((path, is_file)) = ahead.pop() {
        found.extend(path.parent().filter(|_| is_file).and_then(|folder| fs::canonicalize(folder).ok()));
        for link in path.ancestors() {
            let (Ok(target), Some(folder)) = (fs::read_link(link), link.parent()) else { continue };
            found.extend(fs::canonicalize(folder));
            if links.len() < MAX_LINKS && links.insert(link.to_owned()) {
                ahead.push((folder.join(target), is_file && link == path));
            }
        }
    }
    found
}

/// Metadata that differs between two versions of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileVersion {
    len: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    identity: (u64, u64, i64, i64),
}

impl FileVersion {
    fn of(metadata: &fs::Metadata) -> Self {
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

fn read(path: &Path, max_bytes: usize) -> io::Result<(FileVersion, Document)> {
    // Checked before it is opened: opening some devices has side effects.
    let metadata = fs::metadata(path)?;
    if metadata.is_file() { contents(open(path)?, max_bytes) } else { Ok(not_a_file(&metadata)) }
}

/// Does not block on a pipe that has replaced the file since the check.
fn open(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(path)
}

fn contents(file: fs::File, max_bytes: usize) -> io::Result<(FileVersion, Document)> {
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

#[cfg(test)]
mod tests;
