//! Parses the lists that proxies append to: `X-Forwarded-For`, and `Forwarded`
//! (RFC 7239).
//!
//! Callers can write anything into them, so the work is bounded.

use std::net::{IpAddr, Ipv6Addr};

use http::{HeaderMap, HeaderName};

/// The most entries that are read, counting empty entries and lines.
const MAX_ENTRIES: usize = 64;

/// The longest entry that is read. An entry with address, host, protocol and
/// port is much shorter.
const MAX_LENGTH: usize = 512;

/// The entries of all lines of the header, last one first, without empty ones
/// (RFC 9110, section 5.6.1). Ends at an entry that is too long.
pub(super) fn nearest_first<'r>(headers: &'r HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'r [u8]> + use<'r> {
    let entries = headers.get_all(name).iter().rev().flat_map(|line| Entries { rest: Some(line.as_bytes()) });
    let bounded = entries.take(MAX_ENTRIES).take_while(|entry| entry.len() <= MAX_LENGTH);
    bounded.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty())
}

/// The entries of one line, from the right: a quote that the caller left open,
/// further left, must not affect what a proxy has appended.
struct Entries<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.rest?;
        // One byte more than the limit shows that an entry exceeds it.
        let start = line.len().saturating_sub(MAX_LENGTH + 1);
        let mut quoted = false;
        for at in (start..line.len()).rev() {
            match line[at] {
                b'"' if !escaped(&line[start..at]) => quoted = !quoted,
                b',' if !quoted => {
                    self.rest = Some(&line[..at]);
                    return Some(&line[at + 1..]);
                }
                _ => {}
            }
        }
        self.rest = None;
        Some(&line[start..])
    }
}

/// Whether the byte after `before` is escaped, as within a quoted string.
fn escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// The address in a `forwarded-element`: `for=192.0.2.7;proto=https`. `None` if
/// there is not exactly one.
pub(super) fn parse_element(element: &[u8]) -> Option<IpAddr> {
    parse_node(parameter_for(element)?)
}

/// The value of the one `for` of a `forwarded-element`, without quotes.
fn parameter_for(entry: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    let (mut quoted, mut escaped) = (false, false);
    let parameters = entry.split(|&byte| {
        quoted ^= byte == b'"' && !escaped;
        escaped = byte == b'\\' && quoted && !escaped;
        byte == b';' && !quoted
    });
    for parameter in parameters {
        let parameter = parameter.trim_ascii();
        let Some(equals) = parameter.iter().position(|&byte| byte == b'=') else { continue };
        let (name, value) = (&parameter[..equals], &parameter[equals + 1..]);
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
    }
    match found? {
        // No address needs an escape, so escapes are not decoded.
        [b'"', value @ .., b'"'] => Some(value),
        value => Some(value),
    }
}

/// The address in a node with an optional port, which may be obfuscated (RFC
/// 7239, section 6): `192.0.2.7`, `192.0.2.7:4711`, `2001:db8::1`,
/// `[2001:db8::1]` or `[2001:db8::1]:4711`.
pub(super) fn parse_node(node: &[u8]) -> Option<IpAddr> {
    let node = str::from_utf8(node).ok()?.trim_ascii();
    if let Some(bracketed) = node.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        let address: Ipv6Addr = address.parse().ok()?;
        return (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(address.into());
    }
    if let Ok(address) = node.parse() {
        return Some(address);
    }
    let (address, port) = node.split_once(':')?;
    let address = address.parse().ok().map(IpAddr::V4)?;
    is_port(port).then_some(address)
}

fn is_port(port: &str) -> bool {
    match port.strip_prefix('_') {
        Some(obfuscated) => {
            !obfuscated.is_empty()
                && obfuscated.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => port.parse::<u16>().is_ok(),
    }
}

#[cfg(test)]
mod tests;
