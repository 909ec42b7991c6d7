//! Cooldowns as text that instances exchange: a line that names the version and
//! the database, and then for each key a line `LEFT KEY`, with the milliseconds
//! left. It sends nothing.
//!
//! Invariant: no time of day is exchanged, so clock skew does not matter.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::{
    backend::{
        CooldownNotice,
        redis::plan::{RESERVED, RESERVED_IN_TAG, percent_encode},
    },
    descriptor::{Tenant, TenantId},
};

/// Keys with longer names are not shared.
const MAX_KEY: usize = 1_024;

/// The most keys in one message.
pub(super) const MAX_KEYS: usize = 64;

/// A longer message is not one of this crate.
const MAX_MESSAGE: usize = 128 + MAX_KEYS * (MAX_KEY + 32);

/// `RULE:{TENANT}:ENDPOINT:METHOD`, encoded as in the names of counters, but
/// never hashed. Without spaces and line breaks. `None` if it is too long.
pub(super) fn key_of(notice: &CooldownNotice<'_>) -> Option<String> {
    let length = notice.rule.len() + notice.endpoint.len() + notice.method.len();
    let tenant = if let Some(TenantId::Name(name)) = notice.tenant { name.len() } else { 0 };
    if length + tenant > MAX_KEY {
        return None;
    }
    let tenant = match notice.tenant {
        Some(TenantId::Name("")) => "%".into(),
        Some(TenantId::Name(name)) => percent_encode(name, RESERVED_IN_TAG),
        Some(TenantId::Address(address)) => format!("@{address}"),
        None if notice.per_tenant => "!".into(),
        None => "*".into(),
    };
    let (rule, endpoint) = (percent_encode(notice.rule, RESERVED_IN_TAG), percent_encode(notice.endpoint, RESERVED));
    let text = format!("{rule}:{{{tenant}}}:{endpoint}:{}", percent_encode(notice.method, RESERVED));
    (text.len() <= MAX_KEY).then_some(text)
}

pub(super) fn message<'k>(database: i64, keys: impl IntoIterator<Item = (&'k str, Duration)>) -> String {
    let mut text = head(database);
    for (key, left) in keys {
        // Rounded up, so that no instance resumes too early.
        let millis = left.as_nanos().div_ceil(1_000_000);
        text.push_str(&format!("\n{millis} {key}"));
    }
    text
}

fn head(database: i64) -> String {
    format!("1 {database}")
}

/// The lines of a message about this database.
pub(super) fn lines(message: &[u8], database: i64) -> Option<&str> {
    if message.len() > MAX_MESSAGE {
        return None;
    }
    let lines = std::str::from_utf8(message).ok()?.strip_prefix(&head(database))?;
    (lines.is_empty() || lines.starts_with('\n')).then_some(lines)
}

/// Passes on the cooldown in a line. One that cannot be read is left out.
pub(super) fn read(line: &str, pass_on: impl FnOnce(&CooldownNotice<'_>)) -> Option<()> {
    let (left, key) = line.split_once(' ')?;
    if key.len() > MAX_KEY || !left.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Only an address contains a colon.
    let (rule, rest) = key.split_once(":{")?;
    let (tenant, rest) = rest.split_once("}:")?;
    let (endpoint, method) = rest.split_once(':')?;
    let per_tenant = tenant != "*";
    let tenant = match tenant.strip_prefix('@') {
        Some(address) => Some(Tenant::address(address.parse().ok()?)),
        None => match tenant {
            "*" | "!" => None,
            "%" => Some(Tenant::new("")),
            name => Some(Tenant::new(decode(name)?)),
        },
    };
    let (rule, endpoint, method) = (decode(rule)?, decode(endpoint)?, decode(method)?);
    pass_on(&CooldownNotice {
        rule: &rule,
        per_tenant,
        tenant: tenant.as_ref().map(Tenant::id),
        endpoint: &endpoint,
        method: &method,
        time: Duration::from_millis(left.parse().ok()?),
    });
    Some(())
}

fn decode(encoded: &str) -> Option<String> {
    percent_decode_str(encoded).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests;
