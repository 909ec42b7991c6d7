//! Where a request is sent: [`Target`].
//!
//! Invariant: a path or route of an HTTP request is read only where a rule asks for it.

use std::borrow::Cow;

use http::{Extensions, Uri};

/// The path of a request, and the pattern of its route.
#[derive(Clone, Debug)]
pub(super) enum Target<'a> {
    Stated { path: Cow<'a, str>, route: Option<&'a str> },
    Http(HttpTarget<'a>),
}

/// The target of an HTTP request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpTarget<'a> {
    pub(crate) uri: &'a Uri,
    /// Where a router has put what it knows, if one may have.
    pub(crate) router: Option<&'a Extensions>,
}

impl<'a> Target<'a> {
    pub(super) fn path(&self) -> &str {
        match self {
            Self::Stated { path, .. } => path,
            Self::Http(target) => target.path(),
        }
    }

    pub(super) fn route(&self) -> Option<&'a str> {
        match self {
            Self::Stated { route, .. } => *route,
            Self::Http(target) => target.route(),
        }
    }
}

impl<'a> HttpTarget<'a> {
    /// The path that the client sent: a nested router removes a prefix.
    pub(super) fn path(self) -> &'a str {
        let Self { uri, router } = self;
        #[cfg(feature = "axum")]
        let uri = router.and_then(Extensions::get).map_or(uri, |axum::extract::OriginalUri(original)| original);
        let _ = router;
        match uri.path() {
            "" => "/",
            path => path,
        }
    }

    fn route(self) -> Option<&'a str> {
        #[cfg(feature = "axum")]
        if let Some(route) = self.router.and_then(Extensions::get::<axum::extract::MatchedPath>) {
            return Some(route.as_str());
        }
        None
    }
}
