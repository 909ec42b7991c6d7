//! The house stands: each top-level module sees only lower ones, and no file
//! holds two concepts.
#![allow(clippy::unwrap_used)]

#[path = "layering/source.rs"]
mod source;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use self::source::{Source, code_lines};

/// Lowest first. Modules of one layer do not see each other.
const LAYERS: [&[&str]; 10] = [
    &["time", "quota", "error"],
    &["observe", "decision", "descriptor"],
    &["fingerprint"],
    &["algorithm", "headers"],
    &["store", "policy"],
    &["backend"],
    &["limiter"],
    &["backoff", "http", "policy_source"],
    &["middleware", "retry"],
    &["testing"],
];

const MOST_LINES: usize = 350;

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Why `user` may not see `used`.
fn violation(user: &str, used: &str) -> Option<String> {
    match (layer_of(user), layer_of(used)) {
        _ if user == used => None,
        (Some(user), Some(used)) if used < user => None,
        (Some(_), Some(_)) => Some(format!("`{user}` sees `{used}`, which is not below it")),
        (None, _) => Some(format!("`{user}` has no place in the layers")),
        (_, None) => Some(format!("`{user}` sees `{used}`, which has no place in the layers")),
    }
}

fn violations(source: &Source) -> Vec<String> {
    source.imports().into_iter().filter_map(|used| violation(&source.module, &used)).collect()
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every file but `lib.rs`, which names all modules, and those of tests.
fn files() -> Vec<(String, Source)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => walk(&path, found),
                false => found.push(path),
            }
        }
    }
    let mut paths = Vec::new();
    walk(&src(), &mut paths);
    let relative = |path: &PathBuf| path.strip_prefix(src()).unwrap().to_str().unwrap().replace('\\', "/");
    let is_test = |path: &str| path.split('/').any(|part| part == "tests" || part == "tests.rs");
    let named = paths.iter().map(|path| (relative(path), fs::read_to_string(path).unwrap()));
    let code = named.filter(|(name, _)| name.ends_with(".rs") && name != "lib.rs" && !is_test(name));
    code.map(|(name, text)| (name.clone(), Source::new(&name, &text))).collect()
}

#[test]
fn each_module_sees_only_lower_ones() {
    let files = files();
    assert!(files.len() > 20, "{} files", files.len());
    for (name, source) in &files {
        let found = violations(source);
        assert!(found.is_empty(), "src/{name}: {}", found.join("; "));
    }
}

#[test]
fn every_module_has_its_place() {
    let modules: BTreeSet<_> = files().into_iter().map(|(_, source)| source.module).collect();
    let placed: BTreeSet<_> = LAYERS.concat().into_iter().map(str::to_owned).collect();
    assert_eq!(modules, placed);
}

#[test]
fn no_file_is_longer_than_one_concept() {
    for (name, source) in files() {
        let lines = code_lines(&source.code);
        assert!(lines <= MOST_LINES, "src/{name}: {lines} lines of code");
    }
}

#[test]
fn every_kind_of_violation_is_found() {
    for (file, text, used) in [
        ("policy/rule.rs", "use crate::limiter::RateLimiter;", "limiter"),
        ("policy/rule.rs", "use crate::{error::ConfigError, backend::{Local, Usage}};", "backend"),
        ("policy/rule.rs", "fn f() -> crate::middleware::Body<()> { todo!() }", "middleware"),
        ("policy.rs", "use super::store;", "store"),
        ("policy/config/mod.rs", "use super::super::http::Http;", "http"),
        ("policy/mod.rs", "mod inner { use super::super::http; }", "http"),
        ("policy/mod.rs", "pub(in crate::testing) fn f() {}", "testing"),
        ("decision.rs", "use crate::{ descriptor as other };", "descriptor"),
        ("time.rs", "#[cfg(not(test))] use crate::quota::Quota;", "quota"),
        ("new_module.rs", "use crate::time;", "time"),
        ("http/mod.rs", "use crate::{time, Decision};", "Decision"),
    ] {
        let source = Source::new(file, text);
        assert!(source.imports().contains(used), "{text}: {:?}", source.imports());
        assert_eq!(violations(&source).len(), 1, "{text}: {:?}", violations(&source));
    }
}

#[test]
fn what_is_allowed_is_not_found() {
    for (file, text) in [
        ("policy/rule.rs", "use crate::{error::ConfigError, quota::Quota};\nuse crate::policy::Rule;"),
        ("policy/rule.rs", "/// See [`crate::limiter`].\n// use crate::limiter;\nfn f() {}"),
        ("policy/rule.rs", "/* use crate::limiter; /* crate::http */ */"),
        ("policy/rule.rs", "const A: &str = \"crate::limiter\"; const B: char = '\"';"),
        ("policy/rule.rs", "fn f<'a>(x: &'a str) -> char { '\\'' }"),
        ("policy/rule.rs", "const A: &str = r#\"crate::limiter \" crate::http\"#;"),
        ("policy/rule.rs", "use super::limiter;\nuse super::super::time;"),
        ("policy/rule.rs", "#[cfg(test)]\nmod tests { use crate::testing::ManualClock; fn f() { {} } }"),
        ("policy/rule.rs", "#[cfg(test)]\nuse crate::testing::ManualClock;\n#[cfg(test)] mod tests;"),
        ("policy/rule.rs", "use http::Method; use other::crate_name::limiter;"),
    ] {
        let found = violations(&Source::new(file, text));
        assert!(found.is_empty(), "{text}: {found:?}");
    }
}

#[test]
fn lines_of_code_are_counted() {
    let text = "//! Docs.\n\nuse a;\n/* more\n\n   */\nfn f() {\n    // why\n    \"\n\n\";\n}\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
    assert_eq!(code_lines(&Source::new("a.rs", text).code), 5);
}
