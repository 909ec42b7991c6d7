//! As much of Markdown as the tests of pages need: links, headings, code blocks and
//! tables. Not a parser: it knows the forms that this repository uses.

/// A fenced code block: what follows the backticks, and its text.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) info: String,
    pub(crate) text: String,
}

/// The code blocks.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(info), None) => open = Some(Block { info: info.to_owned(), text: String::new() }),
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.text += line;
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block has no end: {open:?}");
    blocks
}

/// The text without code blocks and code spans.
pub(crate) fn prose(text: &str) -> String {
    let mut inside = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            prose.extend(line.split('`').step_by(2));
            prose.push('\n');
        }
    }
    prose
}

/// The targets of links and pictures, and of definitions.
pub(crate) fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let inline = prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    inline.chain(definitions(text).into_iter().map(|(_, target)| target)).collect()
}

/// Definitions of links: `[label]: target`.
pub(crate) fn definitions(text: &str) -> Vec<(String, String)> {
    let definition = |line: &str| {
        let (label, target) = line.strip_prefix('[')?.split_once("]: ")?;
        Some((label.to_owned(), target.to_owned()))
    };
    prose(text).lines().filter_map(definition).collect()
}

/// The labels of links: `[text][label]`.
pub(crate) fn uses(text: &str) -> Vec<String> {
    prose(text).split("][").skip(1).filter_map(|rest| Some(rest.split_once(']')?.0.to_owned())).collect()
}

/// The anchors of headings, as GitHub and rustdoc name them.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut anchors: Vec<String> = Vec::new();
    for line in text.lines() {
        inside ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !inside) else { continue };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let same = anchors.iter().filter(|known| **known == anchor).count();
        anchors.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
    }
    anchors
}

#[test]
fn links_are_found_outside_of_code() {
    let text = "See [a](b.md#c) and ![p](q.svg), not `[x](y)`.\n```\n[no](no.md)\n```\n[t][u.md]\n\n[u.md]: u.md\n";
    assert_eq!(links(text), ["b.md#c", "q.svg", "u.md"]);
    assert_eq!(definitions(text), [("u.md".to_owned(), "u.md".to_owned())]);
    assert_eq!(uses(text), ["u.md"]);
}

#[test]
fn headings_have_anchors() {
    let text = "# RL002: forwarded, but `no` proxy\n## Same\n```\n# a comment\n```\n## Same\n";
    assert_eq!(anchors(text), ["rl002-forwarded-but-no-proxy", "same", "same-1"]);
}

#[test]
fn blocks_have_a_language() {
    let blocks = blocks("```rust,no_run\nlet a = 1;\n```\ntext\n```console\n$ ls\n```\n");
    let found: Vec<_> = blocks.iter().map(|block| (block.info.as_str(), block.text.as_str())).collect();
    assert_eq!(found, [("rust,no_run", "let a = 1;\n"), ("console", "$ ls\n")]);
}
