//! File system events of the folders that lead to a policy file.
//!
//! Events only signal that the file may have changed. They may be missing.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::sync::Notify;

use super::folders::folders;

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
