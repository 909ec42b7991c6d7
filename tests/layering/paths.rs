//! The paths that a file's code names, and the items that it defines.

use std::collections::BTreeSet;

use super::source::{Source, is_word, tokens};

/// A path such as `super::outcome::Outcome`, as it stands in the code.
#[derive(Debug)]
pub(crate) struct NamedPath {
    /// The module whose code names the path: the file's, or an inline one.
    pub(crate) module: Vec<String>,
    pub(crate) segments: Vec<String>,
    pub(crate) role: Role,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Role {
    /// `use path as name;`
    Import { name: String, is_public: bool },
    /// `pub(in path)`
    Visibility,
    /// A path outside of a `use`.
    Mention,
}

impl NamedPath {
    /// The path from the crate's root. `None` where it starts with another
    /// name than `crate`, `self` or `super`.
    pub(crate) fn absolute(&self) -> Option<Vec<String>> {
        let supers = self.segments.iter().take_while(|segment| *segment == "super").count();
        let (base, rest) = match self.segments[0].as_str() {
            "crate" => (&[][..], &self.segments[1..]),
            "self" => (&self.module[..], &self.segments[1..]),
            "super" => (&self.module[..self.module.len().checked_sub(supers)?], &self.segments[supers..]),
            _ => return None,
        };
        Some([base, rest].concat())
    }
}

/// The top-level modules that the paths of `source` lead to.
pub(crate) fn top_level_modules(source: &Source) -> BTreeSet<String> {
    let absolute = named_paths(source).0.into_iter().filter_map(|path| path.absolute());
    absolute.filter_map(|path| path.into_iter().next()).collect()
}

/// Every path of the code, and every item with the module that it stands in.
pub(crate) fn named_paths(source: &Source) -> (Vec<NamedPath>, BTreeSet<Vec<String>>) {
    const ITEMS: [&str; 9] = ["struct", "enum", "trait", "type", "const", "static", "fn", "union", "mod"];
    let tokens = tokens(&source.code);
    let (mut paths, mut items) = (Vec::new(), BTreeSet::new());
    // For each open brace, the name of its inline module.
    let mut open: Vec<Option<&str>> = Vec::new();
    let mut at = 0;
    while let Some(&token) = tokens.get(at) {
        let before = at.checked_sub(1).map_or("", |before| tokens[before]);
        let inline = open.iter().flatten().map(|name| (*name).to_owned());
        let module: Vec<String> = source.module.iter().cloned().chain(inline).collect();
        at += 1;
        match token {
            "{" => open.push((at >= 3 && tokens[at - 3] == "mod").then_some(before)),
            "}" => drop(open.pop()),
            "use" => {
                let is_public = matches!(before, "pub" | ")");
                let mut import = |segments: Vec<String>, name: &str| {
                    let role = Role::Import { name: name.to_owned(), is_public };
                    paths.push(NamedPath { module: module.clone(), segments, role });
                };
                at = use_tree(&tokens, at, &[], &mut import);
            }
            word if is_word(word) && ITEMS.contains(&before) => {
                let is_in_modules_only = open.iter().all(Option::is_some);
                items.extend(is_in_modules_only.then(|| [&module[..], &[word.to_owned()]].concat()));
            }
            word if is_word(word) && !matches!(before, "::" | "." | "'") => {
                let mut segments = vec![word.to_owned()];
                while tokens.get(at) == Some(&"::") && tokens.get(at + 1).is_some_and(|next| is_word(next)) {
                    segments.push(tokens[at + 1].to_owned());
                    at += 2;
                }
                let is_keyword = matches!(segments.last().map(String::as_str), Some("crate" | "self" | "super"));
                let role = match (before, tokens.get(at)) {
                    ("in", Some(&")")) => Role::Visibility,
                    // `pub(super)`, `self.field`
                    _ if is_keyword => continue,
                    _ => Role::Mention,
                };
                paths.push(NamedPath { module, segments, role });
            }
            _ => {}
        }
    }
    (paths, items)
}

/// Reads one tree of a `use` that starts at `at`; returns where it ends.
fn use_tree(tokens: &[&str], mut at: usize, prefix: &[String], import: &mut dyn FnMut(Vec<String>, &str)) -> usize {
    let mut segments = prefix.to_vec();
    while let Some(&token) = tokens.get(at) {
        at += 1;
        match token {
            "::" => continue,
            "{" => {
                while tokens.get(at).is_some_and(|next| *next != "}") {
                    at = use_tree(tokens, at, &segments, import);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            // `{self, ..}`: the prefix itself.
            "self" if !prefix.is_empty() => {}
            _ => segments.push(token.to_owned()),
        }
        match tokens.get(at) {
            Some(&"::") => {}
            Some(&"as") => {
                import(segments, tokens[at + 1]);
                return at + 2;
            }
            _ => {
                let name = segments.last().cloned().unwrap_or_default();
                import(segments, &name);
                return at;
            }
        }
    }
    at
}
