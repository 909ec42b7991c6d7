//! ARCHITECTURE.md stays true: the paths that it names exist, and it names every module.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

/// Folders whose files ARCHITECTURE.md names by their path from the root.
const FOLDERS: [&str; 7] = ["src/", "tests/", "examples/", "benches/", "fuzz/", "scripts/", "docs/"];

fn text() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md")).unwrap()
}

/// The paths between backticks, outside of code blocks.
fn paths(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let quoted = prose.flat_map(|prose| prose.split('`').skip(1).step_by(2));
    quoted.filter(|quoted| FOLDERS.iter().any(|folder| quoted.starts_with(folder))).collect()
}

#[test]
fn every_path_in_the_architecture_exists() {
    let text = text();
    let paths = paths(&text);
    assert!(paths.len() > 40, "{} paths", paths.len());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let missing: Vec<&str> = paths.into_iter().filter(|path| !root.join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what does not exist: {missing:?}");
}

#[test]
fn every_module_is_in_the_architecture() {
    let text = text();
    let paths = paths(&text);
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let modules = fs::read_dir(&src).unwrap();
    let names = modules.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let missing: Vec<String> = names
        .filter(|name| name != "lib.rs")
        // A folder beside a file of its name holds parts of that module.
        .filter(|name| !src.join(format!("{name}.rs")).exists())
        .filter(|name| !paths.iter().any(|path| path.trim_start_matches("src/").trim_end_matches('/') == name))
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not name {missing:?}");
}

#[test]
fn paths_are_found_between_backticks() {
    let text = "Read `src/a.rs`, `tests/b/` and `now`.\n```\n`src/c.rs`\n```\nSee `scripts/d`, not src/e.rs.";
    assert_eq!(paths(text), ["src/a.rs", "tests/b/", "scripts/d"]);
}
