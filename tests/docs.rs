//! README, guide and other pages stay true: every link leads somewhere, every page
//! of `docs/` is a module of `guide`, and the README is short.
#![allow(clippy::unwrap_used)]

#[path = "docs/markdown.rs"]
mod markdown;
#[cfg(feature = "serde")]
#[path = "docs/policy.rs"]
mod policy;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use self::markdown::{anchors, blocks, definitions, links, prose, uses};

/// Where the registry shows the files of the package.
const SOURCE: &str = "https://docs.rs/crate/tower-ratelimit/latest/source/";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The Markdown files of a folder, by their paths from the root.
fn pages_in(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".md"));
    let mut pages: Vec<String> = names.map(|name| format!("{folder}{name}")).collect();
    pages.sort();
    pages
}

fn all_pages() -> Vec<String> {
    ["", "docs/", "docs/internals/", "examples/"].into_iter().flat_map(pages_in).collect()
}

/// The pages of the guide, by name.
fn modules() -> BTreeSet<String> {
    let source = read("src/guide.rs");
    let pages = source.lines().filter_map(|line| line.trim().strip_suffix(".md\"")?.split_once(" \"../docs/"));
    pages
        .map(|(module, file)| {
            assert_eq!(module, file);
            module.to_owned()
        })
        .collect()
}

/// The README is part of the package, and so is what it links to.
#[test]
fn what_the_readme_links_to_is_in_the_package() {
    let relative = links(&read("README.md")).into_iter().filter(|target| !target.contains("://"));
    let files = relative.map(|target| target.split('#').next().unwrap_or_default().to_owned());
    let missing: Vec<_> = files.filter(|file| !file.is_empty() && !is_packaged(file)).collect();
    assert_eq!(missing, [""; 0]);
}

/// Whether a file is part of the package.
fn is_packaged(path: &str) -> bool {
    let manifest = read("Cargo.toml");
    let include = manifest.lines().find_map(|line| line.strip_prefix("include = ")).unwrap();
    include.split('"').skip(1).step_by(2).map(|pattern| &pattern[1..]).any(|pattern| match pattern.split_once('*') {
        Some((start, end)) => path.starts_with(start) && path.ends_with(end),
        None => path == pattern || path.strip_prefix(pattern).is_some_and(|rest| rest.starts_with('/')),
    })
}

/// What is wrong with a link of `page`, if anything is.
fn broken(page: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let file = match path {
        "" => PathBuf::from(page),
        path => Path::new(page).parent().unwrap().join(path),
    };
    if !root().join(&file).exists() {
        return Some(format!("{page}: `{target}`: no such file"));
    }
    let anchor = anchor?;
    (!anchors(&read(&file)).iter().any(|known| known == anchor)).then(|| format!("{page}: `{target}`: no such heading"))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = all_pages();
    assert!(pages.len() > 6, "{pages:?}");
    let broken: Vec<String> = pages
        .iter()
        .flat_map(|page| {
            let links = links(&read(page));
            links.into_iter().filter_map(|target| broken(page, &target)).collect::<Vec<_>>()
        })
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_of_docs_is_in_the_guide() {
    let files: BTreeSet<String> = pages_in("docs/")
        .iter()
        .map(|page| page.trim_start_matches("docs/").trim_end_matches(".md").to_owned())
        .collect();
    assert_eq!(files, modules());
}

/// In the repository, a page's links are resolved by its own definitions; in
/// rustdoc by those of `links.md`, which come first.
#[test]
fn links_of_the_guide_work_in_the_repository_and_in_rustdoc() {
    let rustdoc = definitions(&read("src/guide/links.md"));
    let expected = |label: &str| {
        let (path, anchor) = label.split_once('#').map_or((label, String::new()), |(p, a)| (p, format!("#{a}")));
        match path.strip_prefix("../") {
            None if path.ends_with(".md") => format!("crate::guide::{}{anchor}", path.trim_end_matches(".md")),
            None => format!("{SOURCE}docs/{path}"),
            Some(path) => format!("{SOURCE}{path}{anchor}"),
        }
    };
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for page in pages_in("docs/") {
        let text = read(&page);
        let own = definitions(&text);
        for label in uses(&text) {
            if !own.iter().any(|(known, _)| *known == label) {
                wrong.push(format!("{page}: `[{label}]` is not defined"));
            }
        }
        for (label, target) in own {
            if target.contains("://") {
                continue;
            }
            if label != target {
                wrong.push(format!("{page}: `[{label}]: {target}`: name the link by its target"));
            }
            if !rustdoc.iter().any(|(known, target)| *known == label && *target == expected(&label)) {
                wrong.push(format!("src/guide/links.md lacks `[{label}]: {}`", expected(&label)));
            }
            used.insert(label);
        }
        for target in links(&prose(&text).replace("]: ", "] ")) {
            // Nor does a picture: pictures are not part of the package.
            if !target.contains("://") && !target.starts_with('#') {
                wrong.push(format!("{page}: `({target})` does not work in rustdoc: use `[text][{target}]`"));
            }
        }
    }
    for (label, _) in rustdoc {
        if !used.contains(&label) {
            wrong.push(format!("src/guide/links.md: no page uses `[{label}]`"));
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In rustdoc, links to files lead to the package as the registry shows it.
#[test]
fn the_package_has_the_files_that_the_guide_links_to() {
    let links = definitions(&read("src/guide/links.md"));
    let files: Vec<&str> = links.iter().filter_map(|(_, target)| target.strip_prefix(SOURCE)).collect();
    assert!(files.len() > 5, "{files:?}");
    for file in files.into_iter().chain(["src/guide/links.md"]) {
        assert!(is_packaged(file), "{file} is not in the package");
    }
    for page in pages_in("docs/") {
        assert!(is_packaged(&page), "{page} is not in the package");
    }
}

/// The program of the quick start is the example, which `scripts/examples` runs.
#[test]
fn the_quick_start_is_the_example() {
    let example = read("examples/quickstart.rs");
    let example = example.split_once("\n\n").unwrap().1;
    for page in ["README.md", "docs/quickstart.md"] {
        let blocks = blocks(&read(page));
        let program = blocks.iter().find(|block| block.info.starts_with("rust")).unwrap();
        assert_eq!(program.text, example, "{page}");
    }
}

/// Nothing is shown as Rust that is not compiled.
#[test]
fn every_rust_block_is_compiled() {
    for page in all_pages().into_iter().filter(|page| page.starts_with("docs/") || page == "README.md") {
        for block in blocks(&read(&page)).iter().filter(|block| block.info.starts_with("rust")) {
            assert!(["rust", "rust,no_run"].contains(&&*block.info), "{page}: `{}`", block.info);
        }
    }
}

/// A program that does not compile for a feature that the page does not name costs a
/// reader more than the page saves.
#[test]
fn every_page_with_a_program_has_its_dependencies() {
    for page in pages_in("docs/") {
        let blocks = blocks(&read(&page));
        let has = |start: &str, text: &str| blocks.iter().any(|b| b.info.starts_with(start) && b.text.contains(text));
        let needs_none = !has("rust", "tower_ratelimit");
        assert!(needs_none || has("toml", "\ntower-ratelimit = "), "{page}: no `tower-ratelimit = ` in a `toml` block");
    }
}

/// rustdoc draws no Mermaid: it would show the source.
#[test]
fn no_page_of_the_guide_has_a_mermaid_block() {
    for page in pages_in("docs/") {
        assert!(blocks(&read(&page)).iter().all(|block| block.info != "mermaid"), "{page}");
    }
}

/// A report of a mistake ends with the address of its section.
#[test]
fn every_warning_code_has_its_section_where_the_report_says() {
    let source = read("src/observe/mistakes.rs");
    let start = "https://docs.rs/tower-ratelimit/latest/tower_ratelimit/guide/";
    let page = source.split_once(start).unwrap().1.split_once('/').unwrap().0;
    let anchors = anchors(&read(format!("docs/{page}.md")));
    let codes = source.split('"').filter(|text| text.starts_with("RL0")).map(str::to_lowercase);
    let codes: Vec<String> = codes.filter(|code| code.len() == 5).collect();
    assert!(codes.len() > 10, "{codes:?}");
    let missing: Vec<_> = codes.iter().filter(|code| !anchors.contains(code)).collect();
    assert!(missing.is_empty(), "docs/{page}.md: {missing:?}");
}

#[test]
fn every_page_starts_with_a_program() {
    for page in pages_in("docs/") {
        let text = read(&page);
        let program = blocks(&text).into_iter().find(|block| block.info != "toml");
        let info = program.map(|block| block.info).unwrap_or_default();
        assert!(info.starts_with("rust") || info == "console", "{page}: `{info}`");
    }
}
