//! Real files, changed in every way that files are.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tower_ratelimit::policy_source::FileSource;

use super::{GARBAGE, Watched, yaml};

/// A temporary folder, deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("tower-ratelimit-watch-{}-{nth}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Polls too seldom for a test to see it.
fn events_only(path: impl Into<PathBuf>) -> FileSource {
    FileSource::new(path).poll_interval(Duration::from_secs(600))
}

/// Atomically: no reader sees half a file.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

#[tokio::test]
async fn a_file_is_followed_through_every_kind_of_change() {
    let folder = Folder::new();
    let path = folder.path("policy.yaml");
    let mut watched = Watched::new(events_only(&path));
    watched.wait_for("a file that is missing", |status| status.error.is_some()).await;
    fs::write(&path, yaml(10)).unwrap();
    watched.follows_soon(10).await;
    replace(&path, &yaml(20));
    watched.follows_soon(20).await;
    // Written in place, with the same length as before.
    fs::write(&path, yaml(30)).unwrap();
    watched.follows_soon(30).await;
    fs::remove_file(&path).unwrap();
    watched.keeps(30, "No such file").await;
    replace(&path, &yaml(40));
    watched.follows_soon(40).await;
    // Other files in the folder cause no reload.
    let applied = watched.handle.status().applied;
    fs::write(folder.path("other.yaml"), yaml(99)).unwrap();
    replace(&path, &yaml(50));
    watched.follows_soon(50).await;
    assert_eq!(watched.handle.status().applied, applied + 1);
}

#[tokio::test]
async fn a_kubernetes_config_map_is_followed_through_its_links() {
    let folder = Folder::new();
    // As kubelet does: the link to a folder is replaced.
    let swap = |version: &str, text: &str| {
        let made = folder.path(version);
        fs::create_dir(&made).unwrap();
        fs::write(made.join("policy.yaml"), text).unwrap();
        symlink(version, folder.path("..data_tmp")).unwrap();
        let old = fs::read_link(folder.path("..data"));
        fs::rename(folder.path("..data_tmp"), folder.path("..data")).unwrap();
        if let Ok(old) = old {
            fs::remove_dir_all(folder.path(old.to_str().unwrap())).unwrap();
        }
    };
    swap("..2026_01", &yaml(10));
    symlink("..data/policy.yaml", folder.path("policy.yaml")).unwrap();
    let mut watched = Watched::new(events_only(folder.path("policy.yaml")));
    watched.follows_soon(10).await;
    for (nth, limit) in (2..).zip([20, 30, 40]) {
        swap(&format!("..2026_0{nth}"), &yaml(limit));
        watched.follows_soon(limit).await;
    }
    swap("..2026_bad", "garbage");
    watched.keeps(40, "expected a map").await;
    swap("..2026_good", &yaml(50));
    watched.follows_soon(50).await;
}

#[tokio::test]
async fn a_folder_that_is_a_link_or_is_replaced_is_followed() {
    let folder = Folder::new();
    let release = |name: &str, limit| {
        fs::create_dir(folder.path(name)).unwrap();
        fs::write(folder.path(name).join("policy.yaml"), yaml(limit)).unwrap();
    };
    let point = |name: &str| {
        symlink(name, folder.path("next")).unwrap();
        fs::rename(folder.path("next"), folder.path("current")).unwrap();
    };
    release("one", 10);
    release("two", 20);
    point("one");
    let mut watched = Watched::new(events_only(folder.path("current/policy.yaml")));
    watched.follows_soon(10).await;
    point("two");
    watched.follows_soon(20).await;
    fs::rename(folder.path("two"), folder.path("old")).unwrap();
    watched.keeps(20, "No such file").await;
    release("two", 30);
    watched.follows_soon(30).await;
    // Several: the first may be seen by the read that the new folder caused.
    for limit in [40, 50, 60] {
        replace(&folder.path("two/policy.yaml"), &yaml(limit));
        watched.follows_soon(limit).await;
    }
}

#[tokio::test]
async fn garbage_leaves_the_last_good_policy_in_force() {
    let folder = Folder::new();
    let path = folder.path("policy.yaml");
    fs::write(&path, yaml(10)).unwrap();
    let mut watched = Watched::new(events_only(&path));
    watched.follows(10).await;
    for (nth, garbage) in (1..).zip(GARBAGE) {
        replace(&path, garbage);
        watched.rejects(nth, 10).await;
    }
    fs::write(folder.path("binary"), [0xff, 0xfe, 0, 1]).unwrap();
    fs::rename(folder.path("binary"), &path).unwrap();
    watched.keeps(10, "is not UTF-8").await;
    // A sparse file of 1 GiB, which must not be read into memory.
    let file = fs::File::create(folder.path("huge")).unwrap();
    file.set_len(1 << 30).unwrap();
    fs::rename(folder.path("huge"), &path).unwrap();
    watched.keeps(10, "has more than 1048576 bytes").await;
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    watched.keeps(10, "is not a regular file").await;
    fs::remove_dir(&path).unwrap();
    symlink("nowhere", &path).unwrap();
    watched.keeps(10, "No such file").await;
    symlink("policy.yaml", folder.path("loop")).unwrap();
    fs::rename(folder.path("loop"), &path).unwrap();
    watched.keeps(10, "symbolic links").await;
    replace(&path, &yaml(20));
    watched.follows_soon(20).await;
}

#[tokio::test]
async fn devices_and_pipes_are_not_read() {
    let mut watched = Watched::new(events_only("/dev/zero"));
    watched.wait_for("a rejection", |status| status.rejected == 1).await;
    let folder = Folder::new();
    let path = folder.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let mut watched = Watched::new(events_only(&path));
    watched.wait_for("a rejection", |status| status.rejected == 1).await;
    replace(&path, &yaml(10));
    watched.follows_soon(10).await;
}

#[tokio::test]
async fn a_file_of_exactly_max_bytes_is_accepted() {
    let folder = Folder::new();
    let path = folder.path("policy.yaml");
    let text = yaml(10);
    fs::write(&path, &text).unwrap();
    let mut watched = Watched::new(events_only(&path).max_bytes(text.len()));
    watched.follows(10).await;
    replace(&path, &(text + "\n"));
    watched.keeps(10, "has more than").await;
}

#[tokio::test]
async fn a_relative_path_is_followed() {
    let folder = Folder::new();
    fs::write(folder.path("policy.yaml"), yaml(10)).unwrap();
    let mut up = PathBuf::from("/");
    for _ in env::current_dir().unwrap().components().skip(1) {
        up = if up == Path::new("/") { PathBuf::from("..") } else { up.join("..") };
    }
    let path = up.join(folder.path("policy.yaml").strip_prefix("/").unwrap());
    assert!(path.is_relative());
    let mut watched = Watched::new(events_only(path));
    watched.follows_soon(10).await;
    replace(&folder.path("policy.yaml"), &yaml(20));
    watched.follows_soon(20).await;
}
