//! No input panics, and every accepted policy is valid.

use proptest::{prelude::*, sample::Index};
use tower_ratelimit::{Algorithm, Policy, Rule};

/// Words with a meaning to the reader, and some without.
const WORDS: [&str; 50] = [
    "rules",
    "slas",
    "id",
    "match",
    "methods",
    "paths",
    "routes",
    "tenant",
    "tiers",
    "limit",
    "window",
    "burst",
    "algorithm",
    "concurrent",
    "per",
    "max_wait",
    "smooth",
    "settle",
    "unit",
    "unsettled",
    "per_byte",
    "charge_on",
    "refund_on",
    "5xx",
    "fair",
    "cost",
    "plans",
    "tenants",
    "unlimited",
    "fixed-window",
    "null",
    "-1",
    "0",
    "1e400",
    "18446744073709551616",
    "18446744073709551615s 1000000000ns",
    "[]",
    "{}",
    "''",
    "\"{org}\"",
    "/*",
    "/{*rest}",
    "/{",
    "&a ",
    "*a",
    "<<: ",
    "\n  - ",
    ": ",
    "!!binary ",
    "\u{e9}\u{0}",
];

#[derive(Clone, Debug)]
enum Edit {
    Insert(Index, Index),
    Delete(Index, usize),
    Repeat(Index, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        any::<(Index, Index)>().prop_map(|(at, word)| Edit::Insert(at, word)),
        (any::<Index>(), 1..40_usize).prop_map(|(at, length)| Edit::Delete(at, length)),
        (any::<Index>(), 1..40_usize).prop_map(|(at, length)| Edit::Repeat(at, length)),
    ]
}

fn apply(document: &str, edits: &[Edit]) -> String {
    let mut text: Vec<char> = document.chars().collect();
    for edit in edits {
        let index = |at: &Index| at.index(text.len() + 1);
        match edit {
            Edit::Insert(at, word) => {
                let at = index(at);
                text.splice(at..at, word.get(&WORDS).chars());
            }
            Edit::Delete(at, length) => {
                let at = index(at);
                text.drain(at..text.len().min(at + length));
            }
            Edit::Repeat(at, length) => {
                let at = index(at);
                let part = text[at..text.len().min(at + length)].to_vec();
                text.splice(at..at, part);
            }
        }
    }
    text.into_iter().collect()
}

/// An accepted policy can be written and read back; a rejected one has an error.
fn check(document: &str) -> Result<(), TestCaseError> {
    match Policy::from_yaml(document) {
        Ok(policy) => {
            let tiers = |rule: &Rule| {
                !rule.tiers().is_empty()
                    && rule
                        .tiers()
                        .iter()
                        .all(|tier| tier.window().is_zero() == (tier.counted_by() == Algorithm::Concurrency))
            };
            prop_assert!(policy.rules().iter().all(tiers));
            let json = serde_json::to_string(&policy).unwrap();
            prop_assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy);
        }
        Err(error) => prop_assert!(error.to_string().len() > 10, "{}", error),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(text in any::<String>()) {
        check(&text)?;
    }

    #[test]
    fn no_words_panic(words in proptest::collection::vec(any::<Index>(), 0..30)) {
        check(&words.iter().map(|word| *word.get(&WORDS)).collect::<String>())?;
    }

    #[test]
    fn no_corrupted_file_panics(
        document in prop_oneof![Just(super::NATIVE), Just(super::SLAS), Just(include_str!("../../examples/policy.yaml"))],
        edits in proptest::collection::vec(edit(), 1..6),
    ) {
        check(&apply(document, &edits))?;
    }

    #[test]
    fn no_path_panics(path in "[/a{}*?%.:-]{0,60}") {
        let path = path.replace('\'', "''");
        check(&format!("rules: [{{ id: a, match: {{ paths: ['{path}'] }}, tiers: [{{ limit: 1, window: 1s }}] }}]"))?;
    }

    #[test]
    fn no_duration_panics(window in "([0-9]{1,20}[.]?[0-9]{0,9} ?(ns|us|ms|s|m|h|d|w|y|M) ?){1,4}") {
        check(&format!("rules: [{{ id: a, tiers: [{{ limit: 1, window: '{window}' }}] }}]"))?;
    }
}
