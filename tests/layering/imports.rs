//! Which file imports which, and the circles among them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    paths::{NamedPath, Role, named_paths},
    source::Source,
};

/// For each file, the files that it imports and the names that it takes.
#[derive(Default)]
pub(crate) struct Imports(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Imports {
    pub(crate) fn of(files: &[(String, Source)]) -> Self {
        let (mut everything, mut named) = (Crate::default(), Vec::new());
        for (file, source) in files {
            everything.modules.insert(source.module.clone(), file.clone());
            let (paths, items) = named_paths(source);
            everything.items.extend(items);
            named.extend(paths.into_iter().map(|path| (file, path)));
        }
        // Where an import leads is known once every module is.
        let imports: Vec<_> = named.iter().filter_map(|(_, path)| everything.import(path)).collect();
        everything.imports.extend(imports);

        let mut found = Self::default();
        for (file, path) in named {
            let used = everything.absolute(&path).and_then(|path| everything.defining_file(&path, 0));
            if let Some(used) = used
                && used != file
                && is_edge(&path)
            {
                let names = found.0.entry(file.clone()).or_default().entry(used.to_owned()).or_default();
                names.extend(path.segments.last().cloned());
            }
        }
        found
    }

    fn used_by(&self, file: &str) -> impl Iterator<Item = &String> {
        self.0.get(file).into_iter().flat_map(BTreeMap::keys)
    }

    /// Every file that `file` imports, directly or through others.
    fn reached_from<'a>(&'a self, file: &'a str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = vec![file];
        while let Some(next) = open.pop() {
            open.extend(self.used_by(next).map(String::as_str).filter(|used| reached.insert(*used)));
        }
        reached
    }

    /// Sets of files that all import each other, directly or through others.
    pub(crate) fn circles(&self) -> Vec<BTreeSet<&str>> {
        let reached: BTreeMap<&str, _> = self.0.keys().map(|file| (file.as_str(), self.reached_from(file))).collect();
        let circle_of = |file: &&str| -> BTreeSet<&str> {
            let back = |other: &&str| reached.get(other).is_some_and(|reached| reached.contains(file));
            reached[*file].iter().copied().filter(back).collect()
        };
        let circles: BTreeSet<_> = reached.keys().map(circle_of).filter(|circle| !circle.is_empty()).collect();
        circles.into_iter().collect()
    }

    /// The imports within a circle, one a line.
    pub(crate) fn within(&self, circle: &BTreeSet<&str>) -> String {
        let users = self.0.iter().filter(|(user, _)| circle.contains(user.as_str()));
        let imports = users.flat_map(|(user, used)| used.iter().map(move |(used, names)| (user, used, names)));
        let lines = imports.filter(|(_, used, _)| circle.contains(used.as_str()));
        lines.map(|(user, used, names)| format!("\n  src/{user} -> src/{used}: {names:?}")).collect()
    }
}

/// A `pub use` takes nothing for the file itself, and a visibility neither.
fn is_edge(path: &NamedPath) -> bool {
    matches!(path.role, Role::Mention | Role::Import { is_public: false, .. })
}

/// What the files of a crate define and import.
#[derive(Default)]
struct Crate {
    /// The file of each module.
    modules: BTreeMap<Vec<String>, String>,
    items: BTreeSet<Vec<String>>,
    /// Where the imported names of a module lead.
    imports: BTreeMap<Vec<String>, Vec<String>>,
}

impl Crate {
    /// An imported name, and the absolute path behind it.
    fn import(&self, path: &NamedPath) -> Option<(Vec<String>, Vec<String>)> {
        let Role::Import { name, .. } = &path.role else { return None };
        let imported = path.absolute().or_else(|| self.in_child_module(path))?;
        Some(([&path.module[..], std::slice::from_ref(name)].concat(), imported))
    }

    fn absolute(&self, path: &NamedPath) -> Option<Vec<String>> {
        let imported = || {
            let name = [&path.module[..], &path.segments[..1]].concat();
            self.imports.get(&name).map(|imported| [&imported[..], &path.segments[1..]].concat())
        };
        let is_import = matches!(path.role, Role::Import { .. });
        let imported = || if is_import { None } else { imported() };
        path.absolute().or_else(imported).or_else(|| self.in_child_module(path))
    }

    /// A path that starts with the name of a module below its own. A single
    /// name is none: it may as well be a variable.
    fn in_child_module(&self, path: &NamedPath) -> Option<Vec<String>> {
        let child = [&path.module[..], &path.segments[..1]].concat();
        let is_child = path.segments.len() > 1 && self.modules.contains_key(&child);
        is_child.then(|| [&path.module[..], &path.segments[..]].concat())
    }

    /// The file that defines what an absolute path names. Imports on the way
    /// are followed to where they lead.
    fn defining_file(&self, path: &[String], followed: usize) -> Option<&str> {
        const MOST_FOLLOWED: usize = 16;
        let lengths = (1..=path.len()).rev();
        let (length, file) = lengths.filter_map(|length| Some((length, self.modules.get(&path[..length])?))).next()?;
        let name = &path[..path.len().min(length + 1)];
        match self.imports.get(name) {
            Some(imported) if name.len() > length && !self.items.contains(name) && followed < MOST_FOLLOWED => {
                self.defining_file(&[imported, &path[name.len()..]].concat(), followed + 1)
            }
            _ => Some(file),
        }
    }
}
