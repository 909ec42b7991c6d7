//! What operators see of the source of an instance's share.

/// Logs a problem of the source. The caller logs each problem once.
pub(crate) fn log_share_source(source: &str, problem: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(source, problem, "the source of this instance's share has a problem");
    #[cfg(not(feature = "tracing"))]
    let _ = (source, problem);
}
