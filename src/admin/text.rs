//! Texts of policies, tenants and requests, made fit to be shown.
//!
//! It escapes no markup. Invariant: what [`plain`] returns is short and has no character that
//! controls a terminal or the direction of text.

/// The most characters of a name that are shown.
const MOST: usize = 200;

/// Shortened, and with all characters visible.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::new();
    for char in text.chars().take(MOST) {
        match char {
            '"' | '\'' | '\\' => shown.push(char),
            other => shown.extend(other.escape_debug()),
        }
    }
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

/// The lines of a text, each made visible.
pub(super) fn lines(text: &str) -> Vec<String> {
    text.lines().map(plain).collect()
}

#[cfg(test)]
mod tests;
