//! Tenants by the client's TLS certificate, on tonic's server.

use sha2::{Digest, Sha256};
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

use super::extractor::TenantExtractor;
use crate::{descriptor::TenantRef, http::RequestHead};

/// The SHA-256 of the client's TLS certificate, in lower-case hexadecimal
/// digits, if tonic's server has requested one. `openssl x509 -noout
/// -fingerprint -sha256` prints the same digits in upper case and with colons.
/// With the features `tonic` and `tls`.
///
/// A reissued certificate is another tenant. To use what the certificate says
/// of its holder, read tonic's `TlsConnectInfo` by [`from_fn`].
///
/// [`from_fn`]: super::from_fn
///
/// ```
/// use tower_ratelimit::tenant;
///
/// let by_certificate = tenant::client_certificate().or(tenant::peer_ip());
/// # let _ = by_certificate;
/// ```
#[must_use]
pub fn client_certificate() -> ClientCertificate {
    ClientCertificate {}
}

/// Extracts the client's certificate: see [`client_certificate`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientCertificate {}

impl TenantExtractor for ClientCertificate {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>()?;
        let chain = connection.peer_certs()?;
        Some(TenantRef::name(hex(&Sha256::digest(chain.first()?))))
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).flatten().collect()
}
