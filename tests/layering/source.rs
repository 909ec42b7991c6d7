//! Enough of Rust's grammar to read what a file's code consists of.

/// A file's code, without comments, the insides of strings, and test items.
pub(crate) struct Source {
    /// The path of the file's module below the crate's root.
    pub(crate) module: Vec<String>,
    pub(crate) has_module_docs: bool,
    pub(crate) code: String,
}

impl Source {
    /// `file` is relative to `src`, with forward slashes.
    pub(crate) fn new(file: &str, text: &str) -> Self {
        let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
        Self {
            module: path.split('/').map(str::to_owned).collect(),
            has_module_docs: text.starts_with("//!"),
            code: without_tests(&without_comments(text)),
        }
    }

    /// The top-level module that the file belongs to.
    pub(crate) fn top_level(&self) -> &str {
        &self.module[0]
    }
}

pub(crate) fn is_word(token: &str) -> bool {
    token.starts_with(|char: char| char.is_alphanumeric() || char == '_')
}

pub(crate) fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |char: char| char.is_alphanumeric() || char == '_';
        let length = match first {
            _ if rest.starts_with("::") => 2,
            _ if is_word(first) => rest.find(|char| !is_word(char)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Leaves out comments, and what stands inside strings and characters; line
/// breaks stay.
fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let inner = match char {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            'r' | 'b' if !code.ends_with(|last: char| last.is_alphanumeric() || last == '_') => raw_string(rest),
            '"' => quoted(rest, '"'),
            // A lifetime has no closing quote after its first character.
            '\'' if rest.starts_with("'\\") || rest.chars().nth(2) == Some('\'') => quoted(rest, '\''),
            _ => 0,
        };
        let taken = if inner == 0 { char.len_utf8() } else { inner };
        match inner {
            0 => code.push(char),
            _ => {
                code.extend((char != '/').then_some('"'));
                code.extend(rest[..inner].chars().filter(|char| *char == '\n'));
            }
        }
        rest = &rest[taken..];
    }
    code
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a raw string; 0 where there is none.
fn raw_string(text: &str) -> usize {
    let after = text.trim_start_matches('b');
    let Some(after) = after.strip_prefix('r') else { return 0 };
    let hashes = after.len() - after.trim_start_matches('#').len();
    if !after[hashes..].starts_with('"') {
        return 0;
    }
    let start = text.len() - after.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    text[start..].find(&end).map_or(text.len(), |at| start + at + end.len())
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if char == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Leaves out every item that is compiled for tests only.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        kept.push_str(&rest[..at]);
        rest = &rest[at + MARK.len()..];
        let mut depth = 0;
        // An item ends with its block, or at a semicolon outside of all.
        let end = rest.char_indices().find(|(_, char)| {
            match char {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0 && matches!(char, '}' | ';')
        });
        rest = &rest[end.map_or(rest.len(), |(at, _)| at + 1)..];
    }
    kept + rest
}

/// Lines that hold code.
pub(crate) fn code_lines(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}
