//! `docs/reference.md`, and the legacy format in `docs/migrating.md`, against the
//! parser: each key of a table is a key that the parser knows and the other way
//! round, its example parses, and its default is the default.

use std::collections::{BTreeMap, BTreeSet};

use tower_ratelimit::Policy;

use super::{markdown::blocks, read};

/// A row of a table of keys.
struct Row {
    key: String,
    default: String,
    example: String,
}

/// The text between the first pair of backticks.
fn code(cell: &str) -> String {
    cell.split('`').nth(1).unwrap_or_default().to_owned()
}

/// The tables of keys, by what has these keys: the keys of a rule are in several tables.
fn tables() -> BTreeMap<String, Vec<Row>> {
    let mut tables: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    let mut heading = String::new();
    for line in (read("docs/reference.md") + &read("docs/migrating.md")).lines() {
        if let Some(text) = line.strip_prefix("## ") {
            heading = match text {
                "Counters" | "Tiers" | "Waiting" | "Outcome" | "Client side" | "Fleet" => "Rule".to_owned(),
                text => text.to_owned(),
            };
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [key, _, default, _, example] = cells[..]
            && key.starts_with('`')
        {
            let row = Row { key: code(key), default: code(default), example: code(example) };
            tables.entry(heading.clone()).or_default().push(row);
        }
    }
    tables
}

/// The keys that the parser names when it finds one that it does not know.
fn known(document: &str) -> BTreeSet<String> {
    let error = Policy::from_yaml(document).unwrap_err().to_string();
    let (_, names) = error.split_once("; one of ").unwrap_or_else(|| panic!("{document}: {error}"));
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The keys of an example, written as in YAML's `{ .. }`: `a: 1, b: { c: 2, d: 3 }`.
fn pairs(example: &str) -> Vec<(String, String)> {
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for character in example.chars() {
        depth += i32::from("[{".contains(character)) - i32::from("]}".contains(character));
        match character {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().unwrap().push(character),
        }
    }
    let pair = |part: String| part.trim().split_once(": ").map(|(key, value)| (key.to_owned(), value.to_owned()));
    parts.into_iter().filter_map(pair).collect()
}

/// `pairs` as a map, with those of `required` whose key is missing.
fn map(mut pairs: Vec<(String, String)>, required: &[(&str, &str)]) -> String {
    for (key, value) in required {
        if !pairs.iter().any(|(known, _)| known == key) {
            pairs.push(((*key).to_owned(), (*value).to_owned()));
        }
    }
    let entries: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    format!("{{ {} }}", entries.join(", "))
}

/// A document in which these keys of a table stand where they belong.
fn document(table: &str, keys: Vec<(String, String)>) -> String {
    let rule = |key: &str, value: String| {
        let keys = vec![(key.to_owned(), value)];
        format!("rules: [{}]", map(keys, &[("id", "a"), ("tiers", "[]")]))
    };
    let of_rule = |key, value| format!("rules: [{{ id: a, tiers: [{{ limit: 1, window: 1s }}], {key}: {value} }}]");
    match table {
        "Top level" if keys.iter().any(|(key, _)| key == "slas") => map(keys, &[]),
        "Top level" => map(keys, &[("rules", "[]")]),
        "Rule" => format!("rules: [{}]", map(keys, &[("id", "a"), ("tiers", "[{ limit: 1, window: 1s }]")])),
        "Match" => format!("rules: [{{ id: a, exempt: true, match: {} }}]", map(keys, &[])),
        "Overload" => format!("overload: {}\nrules: []", map(keys, &[])),
        "Exception" => of_rule("plans", format!("{{ pro: {} }}", map(keys, &[]))),
        "Reserve" => of_rule("reserve", map(keys, &[])),
        "Tier" => rule("tiers", format!("[{}]", map(keys, &[]))),
        "Adaptive rate" => {
            let rates = [("floor", "{ limit: 1, window: 1s }"), ("ceiling", "{ limit: 1000, window: 1s }")];
            rule("adaptive_rate", map(keys, &rates))
        }
        "Adaptive concurrency" => {
            let bounds = map(keys, &[("min", "1"), ("max", "1000")]);
            rule("tiers", format!("[{{ concurrent: {bounds} }}]"))
        }
        "SLAs" => format!("slas: [{}]", map(keys, &[("id", "a"), ("tiers", "[{ period: 1, threshold: 1 }]")])),
        table => panic!("docs/reference.md: the test does not know the table `{table}`"),
    }
}

fn parse(document: &str) -> Policy {
    Policy::from_yaml(document).unwrap_or_else(|error| panic!("{document}: {error}"))
}

#[test]
fn the_tables_have_the_keys_of_the_parser() {
    let tables = tables();
    assert_eq!(tables.len(), 10, "{:?}", tables.keys());
    for (table, rows) in &tables {
        let keys = known(&document(table, pairs("no_such_key_at_all: 1")));
        let documented: BTreeSet<String> = rows.iter().map(|row| row.key.clone()).collect();
        assert_eq!(documented, keys, "docs/reference.md: `{table}`");
        assert_eq!(documented.len(), rows.len(), "docs/reference.md: `{table}` names a key twice");
    }
}

#[test]
fn every_example_parses_and_sets_its_key() {
    for (table, rows) in tables() {
        for Row { key, example, .. } in &rows {
            let pairs = pairs(example);
            assert!(pairs.iter().any(|(known, _)| known == key), "`{key}`: `{example}`");
            parse(&document(&table, pairs));
        }
    }
}

/// A policy tells these from a key that is missing; their defaults are the limiter's.
const UNSET_IS_KEPT: [&str; 7] =
    ["burst", "decrease", "increase", "local_share", "on_backend_failure", "on_missing_key", "sync_interval"];

/// To set a key to its default changes nothing.
#[test]
fn every_default_is_the_default() {
    let mut checked = Vec::new();
    for (table, rows) in tables() {
        for Row { key, default, example } in rows.into_iter().filter(|row| !row.default.is_empty()) {
            if UNSET_IS_KEPT.contains(&&*key) {
                continue;
            }
            // Only an exempt rule needs no tiers.
            let example: Vec<_> = pairs(&example).into_iter().filter(|(_, value)| value != "[]").collect();
            let mut set = example.clone();
            set.iter_mut().filter(|(known, _)| *known == key).for_each(|(_, value)| value.clone_from(&default));
            let unset: Vec<_> = example.into_iter().filter(|(known, _)| *known != key).collect();
            let [set, unset] = [set, unset].map(|pairs| parse(&document(&table, pairs)));
            let [set, unset] = [set, unset].map(|policy| serde_json::to_string(&policy).unwrap());
            assert_eq!(set, unset, "`{key}` of `{table}`");
            checked.push(key);
        }
    }
    assert!(checked.len() > 12, "{checked:?}");
}

/// The units that the page lists are those of the parser, and what it spells parses.
#[test]
fn every_spelling_of_a_duration_parses() {
    let page = read("docs/reference.md");
    let durations = page.lines().find(|line| line.starts_with("**Durations**")).unwrap();
    let spellings: Vec<&str> = durations.split('`').skip(1).step_by(2).collect();
    for known in ["ns", "us", "ms", "s", "m", "min", "h", "d", "w", "1h30m", "1h 30m"] {
        assert!(spellings.contains(&known), "{known} is not on the page");
    }
    for spelling in spellings {
        let number = if spelling.starts_with(|first: char| first.is_ascii_digit()) { "" } else { "2" };
        parse(&format!("rules: [{{ id: r, tiers: [{{ limit: 1, window: {number}{spelling} }}] }}]"));
    }
}

/// Every YAML block of a page that has rules is a valid policy.
#[test]
fn the_policies_of_the_pages_are_valid() {
    let mut count = 0;
    for page in super::all_pages() {
        for block in blocks(&read(&page)) {
            if block.info == "yaml" && block.text.lines().any(|line| line == "rules:" || line == "slas:") {
                Policy::from_yaml(&block.text).unwrap_or_else(|error| panic!("{page}: {error}\n{}", block.text));
                count += 1;
            }
        }
    }
    assert!(count > 0, "no policy found");
}
