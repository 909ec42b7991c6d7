//! Logs whose lines are JSON objects: [`read`].
//!
//! It reads the members that are asked for and skips the others. Invariant: a member is a
//! text, a number or a boolean; another value counts as missing.

use std::{borrow::Cow, collections::HashMap};

use foldhash::fast::RandomState;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Text<'l>(#[serde(borrow)] Cow<'l, str>);

/// Puts the members of a line with these names into `slots`.
pub(super) fn read<'l>(line: &'l str, names: &[String], slots: &mut [Option<Cow<'l, str>>]) -> Result<(), String> {
    let members = serde_json::from_str::<HashMap<Text<'_>, &RawValue, RandomState>>(line);
    let members = members.map_err(|error| format!("no JSON object: {error}"))?;
    for (name, slot) in names.iter().zip(slots) {
        *slot = members.get(&Text(name.into())).and_then(|value| text(value.get()));
    }
    Ok(())
}

/// The text of a value as it is written, but of a whole number without its point.
fn text(value: &str) -> Option<Cow<'_, str>> {
    match value.as_bytes().first()? {
        b'"' => serde_json::from_str(value).ok().map(|Text(text)| text),
        b'{' | b'[' | b'n' => None,
        // A status may be written as 429.0.
        _ => Some(value.strip_suffix(".0").unwrap_or(value).into()),
    }
}
