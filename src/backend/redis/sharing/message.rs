//! What instances tell each other, as text: a line that says which database it
//! is about, and then for each key a line `LEFT KEY`, with the milliseconds
//! that are left. No clock is compared with another.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::{
    backend::{CooldownNotice, redis::key},
    descriptor::{Tenant, TenantId},
};

/// Longer names of keys are not shared.
pub(super) const LONGEST_KEY: usize = 1_024;

/// So many keys are told of in one message.
pub(super) const MOST_KEYS: usize = 64;

/// No message that this crate writes is longer: what is, is none of its.
const LONGEST: usize = 128 + MOST_KEYS * (LONGEST_KEY + 32);

/// `RULE:{TENANT}:ENDPOINT:METHOD`, spelled as counters' keys are, but never
/// hashed. Without spaces and line breaks. `None` where it is too long.
pub(super) fn key_of(notice: &CooldownNotice<'_>) -> Option<String> {
    let length = notice.rule.len() + notice.endpoint.len() + notice.method.len();
    let tenant = if let Some(TenantId::Name(name)) = notice.tenant { name.len() } else { 0 };
    if length + tenant > LONGEST_KEY {
        return None;
    }
    let mut text = key::escaped(notice.rule, key::IN_TAG);
    text.push_str(":{");
    match notice.tenant {
        Some(TenantId::Name("")) => text.push('%'),
        Some(TenantId::Name(name)) => text.push_str(&key::escaped(name, key::IN_TAG)),
        Some(TenantId::Address(address)) => text.push_str(&format!("@{address}")),
        None => text.push(if notice.per_tenant { '!' } else { '*' }),
    }
    text.push_str("}:");
    text.push_str(&key::escaped(notice.endpoint, key::ESCAPED));
    text.push(':');
    text.push_str(&key::escaped(notice.method, key::ESCAPED));
    (text.len() <= LONGEST_KEY).then_some(text)
}

/// A message about these keys.
pub(super) fn message<'k>(database: i64, keys: impl IntoIterator<Item = (&'k str, Duration)>) -> String {
    let mut text = head(database);
    for (key, left) in keys {
        // Up: nobody is told to come back too soon.
        let millis = left.as_nanos().div_ceil(1_000_000);
        text.push_str(&format!("\n{millis} {key}"));
    }
    text
}

fn head(database: i64) -> String {
    format!("1 {database}")
}

/// The lines of a message that is about this database.
pub(super) fn lines(message: &[u8], database: i64) -> Option<&str> {
    if message.len() > LONGEST {
        return None;
    }
    let lines = std::str::from_utf8(message).ok()?.strip_prefix(&head(database))?;
    (lines.is_empty() || lines.starts_with('\n')).then_some(lines)
}

/// What lines tell of; those that cannot be read are left out.
pub(super) fn told(lines: &str) -> impl Iterator<Item = Told> {
    lines.split('\n').filter_map(Told::read)
}

/// A key that is held back, and for how long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    rule: String,
    per_tenant: bool,
    tenant: Option<Tenant>,
    endpoint: String,
    method: String,
    time: Duration,
}

impl Told {
    fn read(line: &str) -> Option<Self> {
        let (left, key) = line.split_once(' ')?;
        if key.len() > LONGEST_KEY || !left.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        // None of the parts has a colon of its own, but for an address.
        let (rule, rest) = key.split_once(":{")?;
        let (tenant, rest) = rest.split_once("}:")?;
        let (endpoint, method) = rest.split_once(':')?;
        let (per_tenant, tenant) = match tenant.strip_prefix('@') {
            Some(address) => (true, Some(Tenant::address(address.parse().ok()?))),
            None => match tenant {
                "*" => (false, None),
                "!" => (true, None),
                "%" => (true, Some(Tenant::new(""))),
                name => (true, Some(Tenant::new(plain(name)?))),
            },
        };
        let (rule, endpoint, method) = (plain(rule)?, plain(endpoint)?, plain(method)?);
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

fn plain(escaped: &str) -> Option<String> {
    percent_decode_str(escaped).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn read(text: &str) -> Vec<Told> {
        lines(text.as_bytes(), 0).map(|lines| told(lines).collect()).unwrap_or_default()
    }

    proptest! {
        #[test]
        fn whatever_is_told_is_heard(
            rule in any::<String>(), name in any::<String>(), address in any::<std::net::IpAddr>(), whose in 0..4,
            endpoint in any::<String>(), method in "[A-Z]*", millis in 0..u64::from(u32::MAX)
        ) {
            let mut notice = CooldownNotice::new(&rule, Duration::from_millis(millis));
            (notice.endpoint, notice.method, notice.per_tenant) = (&endpoint, &method, whose > 0);
            notice.tenant = match whose {
                2 => Some(TenantId::Name(&name)),
                3 => Some(TenantId::Address(address)),
                _ => None,
            };
            let Some(key) = key_of(&notice) else { return Ok(()) };
            prop_assert!(!key.contains([' ', '\n']));
            let heard = read(&message(0, [(&*key, notice.time), (&*key, SECOND)]));
            prop_assert_eq!(heard.len(), 2);
            prop_assert_eq!(heard[0].notice(), notice);
        }

        #[test]
        fn whatever_comes_is_read_or_left_out(bytes in any::<Vec<u8>>(), text in "1 0\n[0-9]{0,25} [a-z:{}@!*%\n ]*") {
            let heard = |bytes: &[u8]| lines(bytes, 0).map(|lines| told(lines).count());
            prop_assert!(heard(&bytes).unwrap_or(0) <= bytes.len());
            prop_assert!(heard(text.as_bytes()).is_some());
        }
    }

    #[test]
    fn a_name_is_no_address_nobody_and_not_everybody() {
        for name in ["", "!", "*", "%", "@192.0.2.7", "192.0.2.7", "a}:b", "}:", ":", "{x}", "日本", "a b\nc"] {
            let mut notice = CooldownNotice::new("r:{x}:", SECOND);
            (notice.per_tenant, notice.tenant, notice.endpoint) = (true, Some(TenantId::Name(name)), "/v1/{id}:x");
            let heard = read(&message(0, [(&*key_of(&notice).unwrap(), SECOND)]));
            assert_eq!(heard[0].notice(), notice);
        }
    }

    #[test]
    fn what_is_no_message_is_nothing() {
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
        let long = format!("1 0\n2000 api:{{{}}}::", "a".repeat(LONGEST_KEY));
        assert_eq!(read(&long), []);
        assert_eq!(lines(&vec![b'1'; LONGEST + 1], 0), None);
        let mut notice = CooldownNotice::new("api", SECOND);
        let name = "ä".repeat(LONGEST_KEY / 2 - 10);
        (notice.per_tenant, notice.tenant) = (true, Some(TenantId::Name(&name)));
        assert_eq!(key_of(&notice), None);
    }

    #[test]
    fn what_is_left_is_never_less_than_it_is() {
        let time = Duration::from_micros(1_001);
        assert_eq!(message(3, [("k", time)]), "1 3\n2 k");
    }
}
