//! "Did you mean": the known name that a word is a misspelling of.

/// The first of the known names that `word` may stand for: in another case, with
/// or without separators, or with one letter wrong, missing, added or swapped.
pub(super) fn nearest<'n>(word: &str, mut known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let plain = |word: &str| word.to_lowercase().replace(['-', '_', ' '], "");
    let word = plain(word);
    known.find(|name| strsim::osa_distance(&word, &plain(name)) <= 1)
}
