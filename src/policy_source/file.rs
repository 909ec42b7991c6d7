//! A policy in a file: [`FileSource`].
//!
//! Changes are seen by file system events, and by polling where there are none.
//! Every file system call runs on a blocking thread, and at most one read and
//! one check are under way: a file system that hangs costs two threads.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::{
    sync::Notify,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use super::{
    document::{DEFAULT_MAX_BYTES, Document},
    error::SourceError,
    folders::folders,
    source::{MIN_POLL_INTERVAL, NextUpdate, PolicySource, Update},
};

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
#[must_use]
pub struct FileSource {
    path: PathBuf,
    poll_interval: Duration,
    max_bytes: usize,
    changed: Arc<Notify>,
    /// `None` while a read uses it, and before the first.
    events: Option<FolderEvents>,
    reading: Option<JoinHandle<(FolderEvents, io::Result<(FileVersion, Document)>)>>,
    checking: Option<JoinHandle<io::Result<FileVersion>>>,
    /// The version reported last; `None` before the first and after an error.
    reported: Option<FileVersion>,
}

/// How long a file has to be without events before it is read, and how long
/// that is waited for.
const QUIET: Duration = Duration::from_millis(25);
const MAX_QUIET_WAIT: Duration = Duration::from_millis(250);

/// The timeout of a read, and of a check of the metadata.
const TIMEOUT: Duration = Duration::from_secs(5);

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

/// File system events of all folders on the path. Without a watcher, polling is
/// all there is.
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

    /// The largest file that is read, in bytes: 1 MiB by default.
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
    Ok((FileVersion::of(&metadata), Document::from_bytes(bytes, max_bytes)))
}

fn not_a_file(metadata: &fs::Metadata) -> (FileVersion, Document) {
    (FileVersion::of(metadata), Document::invalid("is not a regular file"))
}

impl PolicySource for FileSource {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn next(&mut self) -> NextUpdate<'_> {
        Box::pin(async {
            if let Some(reported) = self.reported.take() {
                self.changed(&reported).await?;
            }
            let (version, document) = self.read().await?;
            self.reported = Some(version);
            Ok(Update::Changed(document))
        })
    }
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, poll_interval, max_bytes, .. } = self;
        let mut fields = f.debug_struct("FileSource");
        fields.field("path", path).field("poll_interval", poll_interval).field("max_bytes", max_bytes);
        fields.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_events_polling_sees_every_change() {
        let path = std::env::temp_dir().join(format!("tower-ratelimit-file-{}.yaml", std::process::id()));
        let mut file = FileSource::new(&path).poll_interval(Duration::from_millis(10));
        file.events = Some(FolderEvents { watcher: None, folders: BTreeSet::new() });
        for text in ["one", "another", "longer than that"] {
            fs::write(&path, text).unwrap();
            let update = timeout(TIMEOUT, file.next()).await.unwrap().unwrap();
            assert_eq!(update, Update::Changed(Document::yaml(text)));
        }
        // Of the same length, another inode.
        fs::write(path.with_extension("new"), "LONGER THAN THAT").unwrap();
        fs::rename(path.with_extension("new"), &path).unwrap();
        let update = timeout(TIMEOUT, file.next()).await.unwrap().unwrap();
        assert_eq!(update, Update::Changed(Document::yaml("LONGER THAN THAT")));
        fs::remove_file(&path).unwrap();
        assert!(timeout(TIMEOUT, file.next()).await.unwrap().is_err());
    }

    /// A check that never returns fails at its timeout. The source recovers once
    /// the file can be read, although the check is still under way.
    #[tokio::test(start_paused = true)]
    async fn a_file_system_that_hangs_is_reported_and_recovered_from() {
        let path = std::env::temp_dir().join(format!("tower-ratelimit-hangs-{}.yaml", std::process::id()));
        let mut file = FileSource::new(&path).poll_interval(Duration::from_millis(10));
        file.events = Some(FolderEvents { watcher: None, folders: BTreeSet::new() });
        fs::write(&path, "one").unwrap();
        assert_eq!(file.next().await.unwrap(), Update::Changed(Document::yaml("one")));

        file.checking = Some(tokio::spawn(std::future::pending()));
        let start = tokio::time::Instant::now();
        let error = file.next().await.unwrap_err();
        assert_eq!(error.to_string(), "was not looked at within 5s");
        assert!(start.elapsed() < 2 * TIMEOUT);
        assert!(file.checking.is_some(), "no second thread while it hangs");

        for text in ["one", "two!", "three"] {
            fs::write(&path, text).unwrap();
            assert_eq!(file.next().await.unwrap(), Update::Changed(Document::yaml(text)));
        }
        fs::remove_file(&path).unwrap();
    }

    /// A pipe may replace the file between the check and the opening.
    #[cfg(unix)]
    #[test]
    fn opening_a_pipe_does_not_block() {
        let path = std::env::temp_dir().join(format!("tower-ratelimit-pipe-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (sender, opened) = std::sync::mpsc::channel();
        let pipe = path.clone();
        std::thread::spawn(move || sender.send(open(&pipe).and_then(|file| contents(file, 100))));
        let found = opened.recv_timeout(Duration::from_secs(60));
        fs::remove_file(&path).unwrap();
        assert_eq!(found.expect("the pipe has no writer").unwrap().1, Document::invalid("is not a regular file"));
    }

    #[test]
    fn a_read_is_not_a_change() {
        for (kind, read) in [
            (EventKind::Access(AccessKind::Open(AccessMode::Any)), true),
            (EventKind::Access(AccessKind::Close(AccessMode::Read)), true),
            (EventKind::Access(AccessKind::Close(AccessMode::Write)), false),
            (EventKind::Create(notify::event::CreateKind::File), false),
            (EventKind::Any, false),
        ] {
            assert_eq!(is_read(kind), read, "{kind:?}");
        }
    }
}
