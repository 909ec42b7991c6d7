//! Who a request on the command line or in a log is from: [`identified`].
//!
//! It counts nothing. Invariant: an address is identified as the layer does it.

use std::net::IpAddr;

use http::Request;
use tower_ratelimit::{
    RequestHead,
    descriptor::TenantRef,
    tenant::{self, PeerAddr, TenantExtractor},
};

/// By its address if the name reads as one, else by its name.
pub(crate) fn identified(name: &str) -> TenantRef<'_> {
    match name.parse() {
        Ok(IpAddr::V4(address)) => TenantRef::address(address.into()),
        // Counted by its network.
        Ok(IpAddr::V6(address)) => {
            let mut request = Request::new(());
            request.extensions_mut().insert(PeerAddr((address, 0).into()));
            let tenant = tenant::peer_ip().extract(&RequestHead::new(&request)).map(TenantRef::into_owned);
            tenant.map_or_else(|| TenantRef::address(address.into()), TenantRef::from)
        }
        Err(_) => TenantRef::name(name),
    }
}

/// An argument such as `ip=192.0.2.7`.
pub(crate) fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.into(), value.into()))
}
