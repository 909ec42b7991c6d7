//! Messages are read back, and anything else is ignored.

use proptest::prelude::*;

use super::super::*;

const SECOND: Duration = Duration::from_secs(1);

/// What each line of a message says.
fn read_all(text: &[u8]) -> Option<Vec<String>> {
    let mut notices = Vec::new();
    let mut keep = |notice: &CooldownNotice<'_>| notices.push(format!("{notice:?}"));
    lines(text, 0)?.split('\n').for_each(|line| _ = read_line(line, &mut keep));
    Some(notices)
}

fn read_back(text: &str) -> Vec<String> {
    read_all(text.as_bytes()).unwrap_or_default()
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
        let read = read_back(&message(0, [(&*key, notice.time), (&*key, SECOND)]));
        prop_assert_eq!(read.len(), 2);
        prop_assert_eq!(&read[0], &format!("{notice:?}"));
    }

    #[test]
    fn any_bytes_are_read_or_ignored(bytes in any::<Vec<u8>>(), text in "1 0\n[0-9]{0,25} [a-z:{}@!*%\n ]*") {
        prop_assert!(read_all(&bytes).map_or(0, |read| read.len()) <= bytes.len());
        prop_assert!(read_all(text.as_bytes()).is_some());
    }
}

#[test]
fn a_tenants_name_is_never_read_as_a_special_tenant() {
    for name in ["", "!", "*", "%", "@192.0.2.7", "192.0.2.7", "a}:b", "}:", ":", "{x}", "日本", "a b\nc"] {
        let mut notice = CooldownNotice::new("r:{x}:", SECOND);
        (notice.per_tenant, notice.tenant, notice.endpoint) = (true, Some(TenantId::Name(name)), "/v1/{id}:x");
        let read = read_back(&message(0, [(&*key_of(&notice).unwrap(), SECOND)]));
        assert_eq!(read[0], format!("{notice:?}"));
    }
}

#[test]
fn an_invalid_message_has_no_cooldowns() {
    let line = "2000 api:{acme}::";
    assert_eq!(read_back(&format!("1 0\n{line}")).len(), 1);
    assert_eq!(read_back(&format!("1 0\nx\n\n{line}\n{line}x{line}")).len(), 2);
    for text in ["", "1", "1 0", line, "2 0\n2000 api:{acme}::", "1 1\n2000 api:{acme}::", "1 00\n2000 api:{acme}::"] {
        assert_eq!(read_back(text), [""; 0], "{text}");
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
        assert_eq!(read_back(&format!("1 0\n{line}")), [""; 0], "{line}");
    }
    let long = format!("1 0\n2000 api:{{{}}}::", "a".repeat(MAX_KEY));
    assert_eq!(read_back(&long), [""; 0]);
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
