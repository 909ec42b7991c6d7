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

/// The cooldowns in the lines. Those that cannot be read are left out.
pub(super) fn cooldowns(lines: &str) -> impl Iterator<Item = SharedCooldown> {
    lines.split('\n').filter_map(SharedCooldown::read)
}

/// A cooldown of another instance.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SharedCooldown {
    rule: String,
    per_tenant: bool,
    tenant: Option<Tenant>,
    endpoint: String,
    method: String,
    time: Duration,
}

impl SharedCooldown {
    fn read(line: &str) -> Option<Self> {
        let (left, key) = line.split_once(' ')?;
        if key.len() > MAX_KEY || !left.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        // Only an address contains a colon.
        let (rule, rest) = key.split_once(":{")?;
        let (tenant, rest) = rest.split_once("}:")?;
        let (endpoint, method) = rest.split_once(':')?;
        let (per_tenant, tenant) = match tenant.strip_prefix('@') {
            Some(address) => (true, Some(Tenant::address(address.parse().ok()?))),
            None => match tenant {
                "*" => (false, None),
                "!" => (true, None),
                "%" => (true, Some(Tenant::new(""))),
                name => (true, Some(Tenant::new(decode(name)?))),
            },
        };
        let (rule, endpoint, method) = (decode(rule)?, decode(endpoint)?, decode(method)?);
        Some(Self { rule, per_tenant, tenant, endpoint, method, time: Duration::from_millis(left.parse().ok()?) })
    }

    pub(super) fn notice(&self) -> CooldownNotice<'_> {
        CooldownNotice {
            rule: &self.rule,
            per_tenant: self.per_tenant,
            tenant: self.tenant.as_ref().map(Tenant::id),
            endpoint: &self.endpoint,
            method: &self.method,
            time: self.time,
        }
    }
}

fn decode(encoded: &str) -> Option<String> {
    percent_decode_str(encoded).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn read(text: &str) -> Vec<SharedCooldown> {
        lines(text.as_bytes(), 0).map(|lines| cooldowns(lines).collect()).unwrap_or_default()
    }

    proptest! {
        #[test]
        fn every_message_is_read_back(
            rule in any::<String>(), name in any::<String>(), address in any::<std::net::IpAddr>(), tenant_kind in 0..4,
            endpoint in any::<String>(), method in "[A-Z]*", millis in 0..u64::from(u32::MAX)
        ) {
            let mut notice = CooldownNotice::new(&rule, Duration::from_millis(millis));
            (notice.endpoint, notice.method, notice.per_tenant) = (&endpoint, &method, tenant_kind > 0);
            notice.tenant = match tenant_kind {
                2 => Some(TenantId::Name(&name)),
                3 => Some(TenantId::Address(address)),
                _ => None,
            };
            let Some(key) = key_of(&notice) else { return Ok(()) };
            prop_assert!(!key.contains([' ', '\n']));
            let read_back = read(&message(0, [(&*key, notice.time), (&*key, SECOND)]));
            prop_assert_eq!(read_back.len(), 2);
            prop_assert_eq!(read_back[0].notice(), notice);
        }

        #[test]
        fn any_bytes_are_read_or_ignored(bytes in any::<Vec<u8>>(), text in "1 0\n[0-9]{0,25} [a-z:{}@!*%\n ]*") {
            let read_back = |bytes: &[u8]| lines(bytes, 0).map(|lines| cooldowns(lines).count());
            prop_assert!(read_back(&bytes).unwrap_or(0) <= bytes.len());
            prop_assert!(read_back(text.as_bytes()).is_some());
        }
    }

    #[test]
    fn a_tenants_name_is_never_read_as_a_special_tenant() {
        for name in ["", "!", "*", "%", "@192.0.2.7", "192.0.2.7", "a}:b", "}:", ":", "{x}", "日本", "a b\nc"] {
            let mut notice = CooldownNotice::new("r:{x}:", SECOND);
            (notice.per_tenant, notice.tenant, notice.endpoint) = (true, Some(TenantId::Name(name)), "/v1/{id}:x");
            let read_back = read(&message(0, [(&*key_of(&notice).unwrap(), SECOND)]));
            assert_eq!(read_back[0].notice(), notice);
        }
    }

    #[test]
    fn an_invalid_message_has_no_cooldowns() {
        let line = "2000 api:{acme}::";
        assert_eq!(read(&format!("1 0\n{line}")).len(), 1);
        assert_eq!(read(&format!("1 0\nx\n\n{line}\n{line}x{line}")).len(), 2);
        for text in
            ["", "1", "1 0", line, "2 0\n2000 api:{acme}::", "1 1\n2000 api:{acme}::", "1 00\n2000 api:{acme}::"]
        {
            assert_eq!(read(text), [], "{text}");
        }
        for line in [
            "-1 api:{acme}::",
            "+1 api:{acme}::",
            "1.5 api:{acme}::",
            "inf api:{acme}::",
            "99999999999999999999999 api:{acme}::",
            "2000 api:{@acme}::",
            "2000 api:{%ff}::",
            "2000 api:acme::",
            "2000 api:{acme}:",
            "2000",
        ] {
            assert_eq!(read(&format!("1 0\n{line}")), [], "{line}");
        }
        let long = format!("1 0\n2000 api:{{{}}}::", "a".repeat(MAX_KEY));
        assert_eq!(read(&long), []);
        assert_eq!(lines(&vec![b'1'; MAX_MESSAGE + 1], 0), None);
        let mut notice = CooldownNotice::new("api", SECOND);
        let name = "ä".repeat(MAX_KEY / 2 - 10);
        (notice.per_tenant, notice.tenant) = (true, Some(TenantId::Name(&name)));
        assert_eq!(key_of(&notice), None);
    }

    #[test]
    fn the_time_left_is_rounded_up() {
        let time = Duration::from_micros(1_001);
        assert_eq!(message(3, [("k", time)]), "1 3\n2 k");
    }
}
