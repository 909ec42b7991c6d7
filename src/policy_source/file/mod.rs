//! A policy in a file: [`FileSource`].
//!
//! Changes are seen by file system events, and by polling where there are none.
//! Every file system call runs on a blocking thread, and at most one read and
//! one check are under way: a file system that hangs costs two threads.

mod events;
mod read;
#[cfg(test)]
mod tests;

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{
    sync::Notify,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use self::{
    events::FolderEvents,
    read::{FileVersion, read},
};
use super::{
    document::{DEFAULT_MAX_BYTES, Document},
    source::{MIN_POLL_INTERVAL, PolicySource, SourceError},
};

/// The events of the folders that lead to the file, and what was read.
type FileRead = (FolderEvents, io::Result<(FileVersion, Document)>);

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
