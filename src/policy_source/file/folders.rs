//! The folders in which a change can make a path lead to another file.
//!
//! Reads links and writes nothing. A cycle of links ends after [`MAX_LINKS`].

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    path::{Component, Path, PathBuf},
};

/// As many links as Linux follows.
const MAX_LINKS: usize = 40;

/// The folder of the file that the path leads to, and those of all links on the
/// way, as far as they exist. None of them is a link itself.
pub(super) fn folders(path: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut at = PathBuf::new();
    let mut links = 0;
    let mut ahead: VecDeque<PathBuf> = parts(path).collect();
    while let Some(part) = ahead.pop_front() {
        match part.components().next() {
            Some(Component::ParentDir) => {
                at.pop();
            }
            Some(Component::Normal(_)) => {
                let next = at.join(&part);
                match fs::read_link(&next) {
                    Ok(target) => {
                        found.insert(at.clone());
                        links += 1;
                        if links > MAX_LINKS {
                            return found;
                        }
                        parts(&target).rev().for_each(|part| ahead.push_front(part));
                    }
                    Err(_) => at = next,
                }
            }
            // A link with an absolute target starts again at the root.
            Some(Component::Prefix(_) | Component::RootDir) => at.push(&part),
            Some(Component::CurDir) | None => {}
        }
    }
    found.extend(at.parent().map(Path::to_owned));
    found
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = PathBuf> {
    path.components().map(|part| PathBuf::from(part.as_os_str()))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_link_on_the_path_is_found() {
        let home = std::env::temp_dir().join(format!("tower-ratelimit-folders-{}", std::process::id()));
        let home = fs::create_dir_all(&home).and_then(|()| fs::canonicalize(&home)).unwrap();
        let folder = |name: &str| {
            fs::create_dir_all(home.join(name)).unwrap();
            home.join(name)
        };
        let (release, volume) = (folder("releases/7/limits"), folder("volume/..2026"));
        let _ = symlink("releases/7", home.join("current"));
        let _ = symlink("..2026", home.join("volume/..data"));
        let _ = symlink("../../volume/./..data/../..data/policy.yaml", home.join("releases/7/policy.yaml"));
        let _ = symlink(home.join("loop"), home.join("loop"));
        fs::write(volume.join("policy.yaml"), "").unwrap();

        let all = |names: &[&str]| names.iter().map(|name| home.join(name)).collect::<BTreeSet<_>>();
        assert_eq!(folders(&release.join("policy.yaml")), all(&["releases/7/limits"]), "the file does not exist yet");
        let expected =
            BTreeSet::from([home.clone(), home.join("releases/7"), home.join("volume"), home.join("volume/..2026")]);
        assert_eq!(folders(&home.join("current/policy.yaml")), expected);
        assert_eq!(folders(&home.join("loop/policy.yaml")), BTreeSet::from([home.clone()]), "a cycle of links ends");
        fs::remove_dir_all(&home).unwrap();
    }
}
