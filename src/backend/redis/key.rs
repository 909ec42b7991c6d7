//! The names of counters in the store, readable by an operator:
//! `PREFIX:RULE:{tenant}:ENDPOINT:METHOD:ALGORITHM/WINDOW`.
//!
//! What stands in braces says in which slot of a cluster a key lives, so that
//! all that a tenant is charged lives in one. Parts are percent-encoded where
//! they would be mistaken for something else.

use std::fmt::Write;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::{backend::Charge, descriptor::TenantId, policy::Tier};

pub(super) const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'\'').add(b':').add(b'%').add(b'\\');

/// In a rule's id and a tenant's name braces are escaped as well, and the signs
/// that stand for what is no name.
pub(super) const IN_TAG: &AsciiSet = &ESCAPED.add(b'{').add(b'}').add(b'@').add(b'*').add(b'!').add(b'#');

/// Longer ones, once escaped, are hashed.
const LONGEST: usize = 128;

/// The part that says in which slot a key lives: a tenant's name, `%` where
/// that is empty; `@` and an address; `!` for the anonymous tenant; `*` and the
/// rule where all tenants are counted together; `#` and a hash of what is long.
pub(super) fn tag(charge: &Charge<'_>) -> String {
    let mut tag = String::new();
    push_tag(&mut tag, charge);
    tag
}

fn push_tag(tag: &mut String, charge: &Charge<'_>) {
    match charge.tenant() {
        // What is empty would not count as a tag.
        Some(TenantId::Name("")) => tag.push('%'),
        Some(TenantId::Name(name)) => push(tag, name, IN_TAG),
        Some(TenantId::Address(address)) => {
            // An address has nothing to escape but colons, which do no harm
            // between braces.
            let _ = write!(tag, "@{address}");
        }
        None if charge.is_per_tenant() => tag.push('!'),
        None => {
            tag.push('*');
            push(tag, charge.rule(), IN_TAG);
        }
    }
}

/// The name of one tier's counter.
pub(super) fn key(prefix: &str, charge: &Charge<'_>, tier: &Tier) -> String {
    let mut key = String::with_capacity(prefix.len() + 96);
    key.push_str(prefix);
    key.push(':');
    push(&mut key, charge.rule(), IN_TAG);
    key.push_str(":{");
    push_tag(&mut key, charge);
    key.push_str("}:");
    push(&mut key, charge.endpoint(), ESCAPED);
    key.push(':');
    push(&mut key, charge.method(), ESCAPED);
    key.push(':');
    push_tier(&mut key, tier);
    key
}

/// The part as it stands in names, whole.
pub(super) fn escaped(part: &str, escaped: &'static AsciiSet) -> String {
    utf8_percent_encode(part, escaped).to_string()
}

fn push(key: &mut String, part: &str, escaped: &'static AsciiSet) {
    let start = key.len();
    key.extend(utf8_percent_encode(part, escaped));
    if key.len() - start > LONGEST {
        key.truncate(start);
        key.push('#');
        for byte in &Sha256::digest(part)[..16] {
            let _ = write!(key, "{byte:02x}");
        }
    }
}

/// What tells a tier from the key's others, and stays as long as what was used
/// is to stay.
fn push_tier(key: &mut String, tier: &Tier) {
    let window = tier.quota().window();
    key.push_str(tier.quota().counted_by().as_str());
    let nanos = window.as_nanos();
    let _ = match nanos {
        0 => Ok(()),
        _ if nanos.is_multiple_of(1_000_000_000) => write!(key, "/{}s", window.as_secs()),
        _ if nanos.is_multiple_of(1_000_000) => write!(key, "/{}ms", window.as_millis()),
        _ if nanos.is_multiple_of(1_000) => write!(key, "/{}us", window.as_micros()),
        _ => write!(key, "/{nanos}ns"),
    };
    if tier.twin() > 0 {
        let _ = write!(key, "/{}", tier.twin() + 1);
    }
}
