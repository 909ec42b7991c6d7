//! The structure of `src/`: each top-level module imports only lower ones, no
//! files import each other in a circle, no file holds two concepts, and each
//! says what it is.
#![allow(clippy::unwrap_used)]

#[path = "layering/imports.rs"]
mod imports;
#[path = "layering/paths.rs"]
mod paths;
#[path = "layering/source.rs"]
mod source;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use self::{
    imports::Imports,
    paths::top_level_modules,
    source::{Source, code_lines},
};

/// Lowest first. Modules of one layer do not see each other.
const LAYERS: [&[&str]; 13] = [
    &["names", "sync", "unit"],
    &["time", "quota", "error"],
    &["decision", "descriptor", "jitter"],
    &["observe", "fingerprint"],
    &["algorithm", "headers", "overload"],
    &["store", "policy"],
    &["backend"],
    &["limiter"],
    &["backoff"],
    &["http", "policy_source"],
    &["admin", "middleware", "retry"],
    &["testing"],
    &["guide"],
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
        (None, _) => Some(format!("`{user}` has no layer")),
        (_, None) => Some(format!("`{user}` sees `{used}`, which has no layer")),
    }
}

fn violations(source: &Source) -> Vec<String> {
    top_level_modules(source).into_iter().filter_map(|used| violation(source.top_level(), &used)).collect()
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

/// Those of the library. A program in `bin/` is a crate of its own, above all layers.
fn library() -> Vec<(String, Source)> {
    files().into_iter().filter(|(name, _)| !name.starts_with("bin/")).collect()
}

#[test]
fn each_module_sees_only_lower_ones() {
    let files = library();
    assert!(files.len() > 20, "{} files", files.len());
    for (name, source) in &files {
        let found = violations(source);
        assert!(found.is_empty(), "src/{name}: {}", found.join("; "));
    }
}

#[test]
fn every_module_has_a_layer() {
    let modules: BTreeSet<_> = library().into_iter().map(|(_, source)| source.top_level().to_owned()).collect();
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
fn no_files_import_each_other_in_a_circle() {
    let imports = Imports::of(&files());
    let circles: String = imports.circles().iter().map(|circle| imports.within(circle) + "\n").collect();
    assert!(circles.is_empty(), "these files import each other in a circle:{circles}");
}

#[test]
fn every_module_says_what_it_is() {
    let files = files();
    let undocumented = files.iter().filter(|(_, source)| !source.has_module_docs).map(|(name, _)| name);
    let undocumented: Vec<_> = undocumented.collect();
    assert!(undocumented.is_empty(), "no `//!` at the top of {undocumented:?}");
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
        let found = top_level_modules(&source);
        assert!(found.contains(used), "{text}: {found:?}");
        assert_eq!(violations(&source).len(), 1, "{text}: {:?}", violations(&source));
    }
}

#[test]
fn legal_imports_are_not_found() {
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

/// The imports of a crate of such files, as `user -> used: name`.
fn imports(files: &[(&str, &str)]) -> Imports {
    let files: Vec<_> = files.iter().map(|(file, text)| ((*file).to_owned(), Source::new(file, text))).collect();
    Imports::of(&files)
}

#[test]
fn every_kind_of_circle_is_found() {
    let mod_rs = "mod a;\nmod b;\npub use self::{a::A, b::B};";
    let b = "use super::A; pub struct B(A);";
    for (mod_rs, a) in [
        (mod_rs, "use super::b::B; pub struct A(B);"),
        (mod_rs, "use super::B; pub struct A(B);"),
        (mod_rs, "use crate::m::{self, B as Other}; pub struct A(Other);"),
        (mod_rs, "use crate::{m::{B}}; pub struct A(B);"),
        (mod_rs, "pub struct A(super::b::B);"),
        (mod_rs, "pub struct A(crate::m::B);"),
        (mod_rs, "use super::b; pub struct A(b::B);"),
        (mod_rs, "pub struct A; mod inner { use super::super::B; }"),
        ("mod a; mod b; pub use b::B; use a::A;", "use super::B; pub struct A(B);"),
        ("pub struct M; pub use self::a::A; fn f() -> A { A }", "use super::M; pub struct A;"),
        ("pub struct M; pub use self::a::A; fn f() { a::f() }", "use super::M; pub fn f() {} pub struct A;"),
        ("pub struct M; use self::{a::A};", "use super::M; pub struct A;"),
    ] {
        let imports = imports(&[("m/mod.rs", mod_rs), ("m/a.rs", a), ("m/b.rs", b)]);
        assert_eq!(imports.circles().len(), 1, "{mod_rs} {a}");
    }
}

#[test]
fn circles_go_through_any_number_of_files() {
    let through = [("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::d::D;"), ("c/d.rs", "use crate::a::A;")];
    let aside = [("c/mod.rs", "mod d;"), ("e.rs", "use crate::a::A;")];
    let imports = imports(&[through, [aside[0], aside[1], ("f.rs", "")]].concat());
    assert_eq!(imports.circles(), [BTreeSet::from(["a.rs", "b.rs", "c/d.rs"])]);
    let within = imports.within(&imports.circles()[0]);
    assert!(within.contains("src/b.rs -> src/c/d.rs: {\"D\"}"), "{within}");
    assert_eq!(within.trim().lines().count(), 3, "{within}");
}

#[test]
fn re_exports_declarations_and_tests_make_no_circle() {
    let mod_rs = "mod a;\nmod b;\npub use self::{a::A, b::B};\npub struct M;";
    for a in [
        "use super::M; pub struct A(M);",
        "use super::{B, M}; pub(in crate::m) struct A(B);",
        "pub struct A; #[cfg(test)] mod tests { use super::super::B; use crate::m::A; }",
        "/// See [`super::B`].\npub struct A;",
        "use other::m::{b, B}; pub struct A { b: b::B }",
        "pub struct A { b: u8 } fn f(a: &A) { a.b::<B>(); let b = a.b; }",
    ] {
        let b = if a.contains("B}") || a.contains("{B,") { "pub struct B;" } else { "use super::A; pub struct B(A);" };
        let imports = imports(&[("m/mod.rs", mod_rs), ("m/a.rs", a), ("m/b.rs", b)]);
        assert!(imports.circles().is_empty(), "{a}: {:?}", imports.circles());
    }
}
