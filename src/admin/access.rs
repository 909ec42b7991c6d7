//! Who may see the page, and who may act: [`Access`].
//!
//! It authenticates no caller: an operator does that in front of it. Invariant: a page of another
//! origin, in an operator's browser, can neither read nor act.

use http::{
    HeaderMap, HeaderName, Method, Uri,
    header::{FORWARDED, HOST, VIA},
    uri::Authority,
};

use crate::http::{RequestHead, peer};

/// A header that a page of another origin can only send if this one allows it, which it never
/// does.
const ACTS: &str = "x-tower-ratelimit";

/// What proxies add.
const FORWARDING: [HeaderName; 5] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-real-ip"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Programs on this machine, by a name of this machine.
    Loopback,
    /// Callers that have passed the application's own authentication.
    Authenticated,
}

impl Access {
    /// Why the request is not answered.
    pub(super) fn denies(self, request: &RequestHead<'_>) -> Option<&'static str> {
        let headers = request.headers();
        let denied = if self == Self::Loopback { denied_here(request) } else { None };
        denied.or_else(|| (request.method() == Method::POST).then(|| denies_action(headers)).flatten())
    }
}

fn denied_here(request: &RequestHead<'_>) -> Option<&'static str> {
    let headers = request.headers();
    let Some(peer) = peer(request) else {
        return Some("the peer's address is unknown: serve with `into_make_service_with_connect_info`");
    };
    if !peer.is_loopback() {
        return Some("only this machine may see it");
    }
    if FORWARDING.iter().any(|name| headers.contains_key(name)) {
        return Some("the request was forwarded, so it may be from anywhere");
    }
    // A name that leads to this machine may belong to someone else (DNS rebinding).
    (!is_local(headers, request.uri())).then_some("its host is no name of this machine: use `localhost`")
}

/// Whether all that says the host names this machine.
fn is_local(headers: &HeaderMap, uri: &Uri) -> bool {
    let in_headers = headers.get_all(HOST).iter().map(|host| Authority::try_from(host.as_bytes()).ok());
    let hosts: Vec<_> = in_headers.chain(uri.authority().cloned().map(Some)).collect();
    let is_local = |host: &Authority| {
        let name = host.host().trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    };
    !hosts.is_empty() && hosts.iter().all(|host| host.as_ref().is_some_and(is_local))
}

fn denies_action(headers: &HeaderMap) -> Option<&'static str> {
    if !headers.contains_key(ACTS) {
        return Some("an action needs the header `x-tower-ratelimit`");
    }
    let is_own = |site: &http::HeaderValue| site == "same-origin" || site == "none";
    // Where the application allows other origins everything.
    let is_foreign = headers.get_all("sec-fetch-site").iter().any(|site| !is_own(site));
    is_foreign.then_some("a page of another origin must not act")
}

#[cfg(test)]
mod tests;
