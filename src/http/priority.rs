//! Priority extractors: how much a request matters.
//!
//! | extractor | priority |
//! |---|---|
//! | [`header`] | the name in a header that a gateway sets: `low`, `normal`, `high` or `critical` |
//! | [`extension`] | an extension that an outer layer has set, such as by the route |
//! | [`from_fn`] | the result of a closure |
//!
//! A request for which the extractor finds none has its tenant's priority
//! ([`Tenant::priority`](crate::Tenant::priority)), else its plan's, else
//! [`Priority::Normal`].

use http::HeaderName;

use super::{RequestHead, header_name};
pub use crate::descriptor::Priority;
use crate::observe::count_unknown_priority;

/// Finds how much a request matters.
///
/// ```
/// use tower_ratelimit::{Priority, RequestHead, priority::PriorityExtractor};
///
/// /// Writing matters more than reading.
/// struct Writes;
///
/// impl PriorityExtractor for Writes {
///     fn priority(&self, request: &RequestHead<'_>) -> Option<Priority> {
///         (!request.method().is_safe()).then_some(Priority::High)
///     }
/// }
/// # let request = http::Request::put("/").body(()).unwrap();
/// # assert_eq!(Writes.priority(&RequestHead::new(&request)), Some(Priority::High));
/// ```
#[doc(hidden)]
pub trait PriorityExtractor: Send + Sync + 'static {
    /// The request's priority; `None` where its tenant or its plan says.
    fn priority(&self, request: &RequestHead<'_>) -> Option<Priority>;

    /// The header in which a client passes the priority on.
    #[doc(hidden)]
    fn header(&self) -> Option<&HeaderName> {
        None
    }
}

/// The name in the header `name`.
///
/// The sender of the header decides what is served first. Use a header that your
/// gateway sets, and removes from callers' requests. A name that is unknown counts as
/// [`Priority::Normal`], and in the metric `rate_limiting.priority.unknown`.
///
/// On a client, a request without the header gets one that says the [`Priority`] in its
/// extensions, if there is one: the upstream then serves it accordingly.
///
/// # Panics
///
/// If the name is not a valid header name.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Priority, RequestHead, priority::{self, PriorityExtractor}};
///
/// let by_header = priority::header("x-priority");
/// let request = Request::get("/").header("x-priority", "critical").body(()).unwrap();
/// assert_eq!(by_header.priority(&RequestHead::new(&request)), Some(Priority::Critical));
/// ```
#[track_caller]
pub fn header(name: impl TryInto<HeaderName>) -> impl PriorityExtractor + Clone {
    HeaderPriority { name: header_name("priority::header", name) }
}

#[derive(Clone)]
struct HeaderPriority {
    name: HeaderName,
}

impl PriorityExtractor for HeaderPriority {
    fn priority(&self, request: &RequestHead<'_>) -> Option<Priority> {
        request.headers().get(&self.name)?;
        let value = request.single_header(&self.name).and_then(|value| str::from_utf8(value).ok());
        let known = value.and_then(|name| name.to_ascii_lowercase().parse().ok());
        Some(known.unwrap_or_else(|| {
            count_unknown_priority();
            Priority::Normal
        }))
    }

    fn header(&self) -> Option<&HeaderName> {
        Some(&self.name)
    }
}

/// The `T` in the request's extensions, if an outer layer has set one: a [`Priority`],
/// or what can be made one.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Priority, RequestHead, priority::{self, PriorityExtractor}};
///
/// let request = Request::get("/").extension(Priority::Low).body(()).unwrap();
/// let priority = priority::extension::<Priority>().priority(&RequestHead::new(&request));
/// assert_eq!(priority, Some(Priority::Low));
/// ```
pub fn extension<T: Clone + Into<Priority> + Send + Sync + 'static>() -> impl PriorityExtractor + Clone {
    from_fn(|request: &RequestHead<'_>| request.extensions().get::<T>().cloned().map(Into::into))
}

/// The result of `find`: a [`Priority`], or an `Option` of one.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Priority, RequestHead, priority::{self, PriorityExtractor}};
///
/// let by_path = priority::from_fn(|request: &RequestHead<'_>| match request.uri().path() {
///     "/checkout" => Priority::Critical,
///     _ => Priority::Normal,
/// });
/// let request = Request::post("/checkout").body(()).unwrap();
/// assert_eq!(by_path.priority(&RequestHead::new(&request)), Some(Priority::Critical));
/// ```
pub fn from_fn<F, P>(find: F) -> impl PriorityExtractor + Clone
where
    F: Fn(&RequestHead<'_>) -> P + Clone + Send + Sync + 'static,
    P: Into<Option<Priority>> + 'static,
{
    PriorityFn(move |request: &RequestHead<'_>| find(request).into())
}

#[derive(Clone)]
struct PriorityFn<F>(F);

impl<F> PriorityExtractor for PriorityFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<Priority> + Send + Sync + 'static,
{
    fn priority(&self, request: &RequestHead<'_>) -> Option<Priority> {
        (self.0)(request)
    }
}
