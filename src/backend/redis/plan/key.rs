//! The names of counters in the store, readable for operators:
//! `PREFIX:RULE:{TENANT}:ENDPOINT:METHOD:ALGORITHM/WINDOW`. They are text, not
//! fingerprints, since they mean the same to all instances.
//!
//! Invariant: different counters have different names, and all counters of a
//! tenant share one hash tag (the part in braces), so they are in one hash slot
//! of a cluster.

use std::{fmt::Write, time::Duration};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sha2::{Digest, Sha256};

use super::definition::PlanContext;
use crate::{backend::Charge, descriptor::TenantId, policy::Tier};

/// What is percent-encoded in every part.
pub(crate) const RESERVED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'\'').add(b':').add(b'%').add(b'\\');

/// In a rule's id and a tenant's name also braces, and the signs that mark what
/// is not a name.
pub(crate) const RESERVED_IN_TAG: &AsciiSet = &RESERVED.add(b'{').add(b'}').add(b'@').add(b'*').add(b'!').add(b'#');

/// A part that is longer than this, once encoded, is replaced by its hash.
const MAX_PART: usize = 128;

impl PlanContext {
    /// Chooses the hash slot of a charge; empty without a cluster.
    pub(crate) fn hash_tag(&self, charge: &Charge<'_>) -> String {
        let mut tag = String::new();
        if !self.is_single_slot {
            push_tag(&mut tag, charge);
        }
        tag
    }

    /// The name of one tier's counter.
    pub(super) fn counter_key(&self, charge: &Charge<'_>, tier: &Tier) -> String {
        let mut key = String::with_capacity(self.prefix.len() + 96);
        key.push_str(&self.prefix);
        key.push(':');
        push(&mut key, charge.rule(), RESERVED_IN_TAG);
        key.push_str(":{");
        push_tag(&mut key, charge);
        key.push_str("}:");
        push(&mut key, charge.endpoint(), RESERVED);
        key.push(':');
        push(&mut key, charge.method(), RESERVED);
        key.push(':');
        push_tier(&mut key, tier);
        key
    }
}

/// The hash tag: a tenant's name, or `%` where that is empty; `@` and an
/// address; `!` for the anonymous tenant; `*` and the rule where all tenants
/// share a counter; `#` and a hash of a long name.
fn push_tag(tag: &mut String, charge: &Charge<'_>) {
    match charge.tenant() {
        // Redis ignores an empty hash tag.
        Some(TenantId::Name("")) => tag.push('%'),
        Some(TenantId::Name(name)) => push(tag, name, RESERVED_IN_TAG),
        Some(TenantId::Address(address)) => {
            // Only its colons are reserved, and those are unambiguous between
            // braces.
            let _ = write!(tag, "@{address}");
        }
        None if charge.rule.is_per_tenant() => tag.push('!'),
        None => {
            tag.push('*');
            push(tag, charge.rule(), RESERVED_IN_TAG);
        }
    }
}

/// The parts of a counter's name before, in and after its hash tag.
pub(crate) fn around_tag<'k>(prefix: &str, key: &'k str) -> (&'k str, &'k str, &'k str) {
    // Neither the rule nor the tag contains braces of its own.
    let start = key.get(prefix.len()..).and_then(|rest| rest.find('{')).map(|at| prefix.len() + at + 1);
    let end = start.and_then(|start| Some(start + key[start..].find('}')?));
    match (start, end) {
        (Some(start), Some(end)) => (&key[..start], &key[start..end], &key[end..]),
        _ => (key, "", ""),
    }
}

/// The whole part, percent-encoded.
pub(crate) fn percent_encode(part: &str, reserved: &'static AsciiSet) -> String {
    utf8_percent_encode(part, reserved).to_string()
}

fn push(key: &mut String, part: &str, reserved: &'static AsciiSet) {
    let start = key.len();
    key.extend(utf8_percent_encode(part, reserved));
    if key.len() - start > MAX_PART {
        key.truncate(start);
        key.push('#');
        for byte in &Sha256::digest(part)[..16] {
            let _ = write!(key, "{byte:02x}");
        }
    }
}

/// Identifies the tier within the rule. It leaves out the limit, so that a
/// changed limit keeps what was used.
fn push_tier(key: &mut String, tier: &Tier) {
    let quota = tier.quota();
    key.push_str(quota.counted_by().as_str());
    if quota.is_month() {
        key.push_str("/month");
    } else {
        push_time(key, '/', quota.window());
    }
    push_time(key, '+', quota.explicit_offset().unwrap_or_default());
    if tier.twin > 0 {
        let _ = write!(key, "/{}", tier.twin + 1);
    }
}

fn push_time(key: &mut String, sign: char, time: Duration) {
    let nanos = time.as_nanos();
    let _ = match nanos {
        0 => Ok(()),
        _ if nanos.is_multiple_of(1_000_000_000) => write!(key, "{sign}{}s", time.as_secs()),
        _ if nanos.is_multiple_of(1_000_000) => write!(key, "{sign}{}ms", time.as_millis()),
        _ if nanos.is_multiple_of(1_000) => write!(key, "{sign}{}us", time.as_micros()),
        _ => write!(key, "{sign}{nanos}ns"),
    };
}
