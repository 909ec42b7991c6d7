//! What a rule does when the backend fails: [`FailureMode`].

use super::names::names;

/// What a rule does with a request when the backend fails.
///
/// ```
/// use tower_ratelimit::FailureMode;
///
/// assert_eq!("closed".parse(), Ok(FailureMode::Closed));
/// assert_eq!(FailureMode::default().to_string(), "open");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// Fail open: the request is admitted.
    #[default]
    Open,
    /// Fail closed: the request is rejected, over HTTP with 503.
    Closed,
    /// Fail local: a fallback limiter in this process decides, at the rule's
    /// limits or a share of them (see [`Rule::local_share`](crate::Rule::local_share)).
    /// It delays no request.
    ///
    /// The fallback limiter is kept warm. While the backend works, it counts
    /// what the backend admits, up to the limit, and what is given back, added
    /// afterwards or released. So a tenant that has used up its limit does not
    /// get it again when the backend fails.
    ///
    /// It knows only what this limiter has admitted, holds at most as many keys
    /// as [`Local`](crate::backend::Local) does by default, and does not report
    /// to the backend what it admits.
    Local,
}

names!(FailureMode, "failure mode", { Open => "open", Closed => "closed", Local => "local" });
