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

use super::{Document, MOST_BYTES, Next, PolicySource, SHORTEST_LOOK, SourceError, Update, folders::folders};

/// A policy in a YAML file.
///
/// Changes are seen at once, by what the system says of the file's folder and
/// of those of all links that lead there; and within a second where the system
/// says nothing, as network file systems do. So these are all seen: a file that
/// is replaced by another one (the way to change it: write beside it, and
/// rename), one that is written in place, a link that is pointed elsewhere, and
/// the volumes of Kubernetes' ConfigMaps, whose folder `..data` is such a link.
///
/// A file that is written in place is read once nothing has happened for 25
/// ms, after a quarter of a second at the latest.
///
/// ```no_run
/// use std::time::Duration;
/// use tower_ratelimit::policy_source::FileSource;
///
/// let source = FileSource::new("/etc/limits/policy.yaml").every(Duration::from_millis(200));
/// ```
#[must_use]
pub struct FileSource {
    path: PathBuf,
    every: Duration,
    most: usize,
    changed: Arc<Notify>,
    eyes: Option<Eyes>,
    reading: Option<JoinHandle<(Eyes, io::Result<Found>)>>,
    looking: Option<JoinHandle<io::Result<Stamp>>>,
    /// Of what was told last; `None` where that is to be told anew.
    told: Option<Stamp>,
}

/// How long a file has to be left alone before it is read, and how long is
/// waited for that.
const QUIET: Duration = Duration::from_millis(25);
const RESTLESS: Duration = Duration::from_millis(250);

/// How long reading may take, and looking.
const PATIENCE: Duration = Duration::from_secs(5);

struct Found {
    stamp: Stamp,
    document: Document,
}

impl Found {
    fn new(metadata: &fs::Metadata, document: Document) -> Self {
        Self { stamp: Stamp::of(metadata), document }
    }

    fn no_file(metadata: &fs::Metadata) -> Self {
        Self::new(metadata, Document::unusable("is no file"))
    }
}

/// What tells a file from what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    identity: (u64, u64, i64, i64),
}

impl Stamp {
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

/// What the system tells of folders. Without, there is polling.
struct Eyes {
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
}

impl Eyes {
    fn new(changed: &Arc<Notify>) -> Self {
        let changed = Arc::clone(changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| !is_reading(event.kind)) {
                changed.notify_one();
            }
        });
        Self { watcher: watcher.ok(), folders: BTreeSet::new() }
    }

    /// Links may have been pointed elsewhere, and folders been made anew.
    fn follow(&mut self, path: &Path) {
        let Some(watcher) = &mut self.watcher else { return };
        let folders = folders(path);
        for gone in self.folders.difference(&folders) {
            // It may not exist any more.
            let _ = watcher.unwatch(gone);
        }
        for folder in &folders {
            let _ = watcher.watch(folder, RecursiveMode::NonRecursive);
        }
        self.folders = folders;
    }
}

/// Reading must not be told from reading.
fn is_reading(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

impl FileSource {
    /// The file at `path`. It need not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            every: Duration::from_secs(1),
            most: MOST_BYTES,
            changed: Arc::default(),
            eyes: None,
            reading: None,
            looking: None,
            told: None,
        }
    }

    /// How often to look whether the file is another one, where the system
    /// does not tell: every second, unless set. At least 10 ms.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(SHORTEST_LOOK);
        self
    }

    /// The most bytes that the file may have: a mebibyte, unless set.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.most = bytes;
        self
    }

    /// Waits until the file may be another one.
    async fn change(&mut self, told: &Stamp) -> Result<(), SourceError> {
        loop {
            if timeout(self.every, self.changed.notified()).await.is_ok() {
                let quiet = async { while timeout(QUIET, self.changed.notified()).await.is_ok() {} };
                let _ = timeout(RESTLESS, quiet).await;
                return Ok(());
            }
            let looking = self.looking.get_or_insert_with(|| {
                let path = self.path.clone();
                spawn_blocking(move || fs::metadata(path).map(|metadata| Stamp::of(&metadata)))
            });
            let Ok(stamp) = timeout(PATIENCE, looking).await else {
                return Err(SourceError::new(format!("was not looked at within {PATIENCE:?}")));
            };
            self.looking = None;
            if !matches!(stamp, Ok(Ok(stamp)) if stamp == *told) {
                return Ok(());
            }
        }
    }

    /// A file system that hangs gets one thread, not one for each time.
    async fn read(&mut self) -> Result<Found, SourceError> {
        let reading = self.reading.get_or_insert_with(|| {
            let mut eyes = self.eyes.take().unwrap_or_else(|| Eyes::new(&self.changed));
            let (path, most) = (std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone()), self.most);
            spawn_blocking(move || {
                // First, so that no change is missed.
                eyes.follow(&path);
                let found = read(&path, most);
                (eyes, found)
            })
        });
        let Ok(read) = timeout(PATIENCE, reading).await else {
            return Err(SourceError::new(format!("was not read within {PATIENCE:?}")));
        };
        self.reading = None;
        // A look that hangs from before may do so for good.
        self.looking = None;
        let (eyes, found) = read.map_err(SourceError::new)?;
        self.eyes = Some(eyes);
        found.map_err(SourceError::new)
    }
}

fn read(path: &Path, most: usize) -> io::Result<Found> {
    // Of some devices even opening does something.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Ok(Found::no_file(&metadata));
    }
    contents(open(path)?, most)
}

/// What is no file any more may have taken its place meanwhile: to open a pipe
/// would last until somebody writes to it.
fn open(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(path)
}

fn contents(file: fs::File, most: usize) -> io::Result<Found> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(Found::no_file(&metadata));
    }
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    if metadata.len() > limit {
        return Ok(Found::new(&metadata, Document::too_large(most)));
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Found::new(&metadata, Document::of_bytes(bytes, most)))
}

impl PolicySource for FileSource {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async {
            if let Some(told) = self.told.take() {
                self.change(&told).await?;
            }
            let found = self.read().await?;
            self.told = Some(found.stamp);
            Ok(Update::Changed(found.document))
        })
    }
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, every, most, .. } = self;
        f.debug_struct("FileSource")
            .field("path", path)
            .field("every", every)
            .field("most", most)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn where_the_system_tells_nothing_it_looks() {
        let path = std::env::temp_dir().join(format!("tower-ratelimit-file-{}.yaml", std::process::id()));
        let mut file = FileSource::new(&path).every(Duration::from_millis(10));
        file.eyes = Some(Eyes { watcher: None, folders: BTreeSet::new() });
        for text in ["one", "another", "longer than that"] {
            fs::write(&path, text).unwrap();
            let told = timeout(PATIENCE, file.next()).await.unwrap().unwrap();
            assert_eq!(told, Update::Changed(Document::yaml(text)));
        }
        // Of the same length, in another place of the disk.
        fs::write(path.with_extension("new"), "LONGER THAN THAT").unwrap();
        fs::rename(path.with_extension("new"), &path).unwrap();
        let told = timeout(PATIENCE, file.next()).await.unwrap().unwrap();
        assert_eq!(told, Update::Changed(Document::yaml("LONGER THAN THAT")));
        fs::remove_file(&path).unwrap();
        assert!(timeout(PATIENCE, file.next()).await.unwrap().is_err());
    }

    /// A look that never comes back: said once it has lasted too long, and all
    /// goes on once the file can be read, though that look is still under way.
    #[tokio::test(start_paused = true)]
    async fn a_file_system_that_hangs_is_said_and_left_behind() {
        let path = std::env::temp_dir().join(format!("tower-ratelimit-hangs-{}.yaml", std::process::id()));
        let mut file = FileSource::new(&path).every(Duration::from_millis(10));
        file.eyes = Some(Eyes { watcher: None, folders: BTreeSet::new() });
        fs::write(&path, "one").unwrap();
        assert_eq!(file.next().await.unwrap(), Update::Changed(Document::yaml("one")));

        file.looking = Some(tokio::spawn(std::future::pending()));
        let hangs = tokio::time::Instant::now();
        let error = file.next().await.unwrap_err();
        assert_eq!(error.to_string(), "was not looked at within 5s");
        assert!(hangs.elapsed() < 2 * PATIENCE);
        assert!(file.looking.is_some(), "no second thread while it hangs");

        for text in ["one", "two!", "three"] {
            fs::write(&path, text).unwrap();
            assert_eq!(file.next().await.unwrap(), Update::Changed(Document::yaml(text)));
        }
        fs::remove_file(&path).unwrap();
    }

    /// As where it takes the place of a file between the look and the opening.
    #[cfg(unix)]
    #[test]
    fn to_open_a_pipe_does_not_last() {
        let path = std::env::temp_dir().join(format!("tower-ratelimit-pipe-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (sender, opened) = std::sync::mpsc::channel();
        let pipe = path.clone();
        std::thread::spawn(move || sender.send(open(&pipe).and_then(|file| contents(file, 100))));
        let found = opened.recv_timeout(Duration::from_secs(60));
        fs::remove_file(&path).unwrap();
        assert_eq!(found.expect("nobody writes").unwrap().document, Document::unusable("is no file"));
    }

    #[test]
    fn a_file_that_is_read_is_not_one_that_is_changed() {
        for (kind, reading) in [
            (EventKind::Access(AccessKind::Open(AccessMode::Any)), true),
            (EventKind::Access(AccessKind::Close(AccessMode::Read)), true),
            (EventKind::Access(AccessKind::Close(AccessMode::Write)), false),
            (EventKind::Create(notify::event::CreateKind::File), false),
            (EventKind::Any, false),
        ] {
            assert_eq!(is_reading(kind), reading, "{kind:?}");
        }
    }
}
