use std::borrow::Cow;

use http::HeaderName;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use super::TenantExtractor;
use crate::{descriptor::TenantRef, http::RequestHead};

/// The value of the header `name`, as the tenant's name.
///
/// An empty value is none, and so is a header sent more than once: which of
/// the values counts would be the caller's choice. A value that is not UTF-8
/// is percent-encoded.
///
/// A `name` that cannot be a header's is never found; a constant
/// [`HeaderName`] cannot be wrong.
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

/// Finds a header: see [`header`].
#[derive(Clone, Debug)]
pub struct HeaderTenant {
    name: Option<HeaderName>,
}

impl TenantExtractor for HeaderTenant {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
        let value = only(request, self.name.as_ref()?)?;
        let name = match str::from_utf8(value) {
            Ok(text) => Cow::Borrowed(text),
            // No text can start with a byte that no header may hold.
            Err(_) => format!("\0{}", percent_encode(value, ENCODED)).into(),
        };
        Some(TenantRef::name(name))
    }
}

/// The value of a header that is sent once and not empty.
pub(in crate::http) fn only<'r>(request: &RequestHead<'r>, name: &HeaderName) -> Option<&'r [u8]> {
    let mut values = request.headers().get_all(name).iter();
    let value = values.next()?.as_bytes().trim_ascii();
    (!value.is_empty() && values.next().is_none()).then_some(value)
}
