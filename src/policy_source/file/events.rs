//! File system events of the folders in which a change can make a path lead to
//! another file.
//!
//! Events only signal that the file may have changed. They may be missing.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::sync::Notify;

/// File system events of all folders on the path. Without a watcher, polling is
/// all there is.
#[derive(Debug)]
pub(super) struct FolderEvents {
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
}

impl FolderEvents {
    pub(super) fn new(changed: &Arc<Notify>) -> Self {
        let changed = Arc::clone(changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| !is_read(event.kind)) {
                changed.notify_one();
            }
        });
        Self { watcher: watcher.ok(), folders: BTreeSet::new() }
    }

    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self { watcher: None, folders: BTreeSet::new() }
    }

    /// Subscribes again: links may point elsewhere, and folders may have been
    /// replaced.
    pub(super) fn follow(&mut self, path: &Path) {
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
pub(super) fn is_read(kind: EventKind) -> bool {
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

#[cfg(all(test, unix))]
mod tests;
