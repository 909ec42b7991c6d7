//! Tenants by a header's value, such as an API key.
//!
//! Of a repeated header no value counts: the choice would be the caller's.

use std::borrow::Cow;

use http::HeaderName;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use super::extractor::TenantExtractor;
use crate::{descriptor::TenantRef, http::RequestHead};

/// The value of the header `name`, as the tenant's name.
///
/// An empty value is no tenant, and neither is a repeated header: the caller
/// would choose which value counts. A value that is not UTF-8 is
/// percent-encoded.
///
/// An invalid header name is never found. A constant [`HeaderName`] is always
/// valid.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{descriptor::TenantRef, http::{RequestHead, tenant::{self, TenantExtractor}}};
///
/// let by_key = tenant::header("x-api-key");
/// let request = Request::get("/").header("x-api-key", "k-123").body(()).unwrap();
/// assert_eq!(by_key.extract(&RequestHead::new(&request)), Some(TenantRef::name("k-123")));
/// ```
pub fn header(name: impl TryInto<HeaderName>) -> HeaderTenant {
    HeaderTenant { name: name.try_into().ok() }
}

/// Extracts a header's value: see [`header`].
#[derive(Clone, Debug)]
pub struct HeaderTenant {
    name: Option<HeaderName>,
}

impl TenantExtractor for HeaderTenant {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
        let value = request.single_header(self.name.as_ref()?)?;
        let name = match str::from_utf8(value) {
            Ok(text) => Cow::Borrowed(text),
            // No UTF-8 value can start with this byte: headers exclude it.
            Err(_) => format!("\0{}", percent_encode(value, ENCODED)).into(),
        };
        Some(TenantRef::name(name))
    }
}
