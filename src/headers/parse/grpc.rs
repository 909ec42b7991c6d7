//! The trailers of a gRPC response that has nothing else. They are sent as
//! headers.

use std::time::Duration;

use http::{HeaderMap, HeaderName, header::CONTENT_TYPE};

use super::{
    fields::{lines, lines_up_to},
    form, retry_info,
};

static STATUS: HeaderName = HeaderName::from_static("grpc-status");
static PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
static DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// The default limit of gRPC implementations for all headers.
const MOST_BYTES: usize = 8_192;

const OK: u64 = 0;
const RESOURCE_EXHAUSTED: u64 = 8;
const UNAVAILABLE: u64 = 14;

/// The signal of the trailers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trailers {
    pub(super) rejection: bool,
    pub(super) no_retry: bool,
    /// Not zero.
    pub(super) after: Option<Duration>,
}

pub(super) fn read(headers: &HeaderMap) -> Trailers {
    let is_grpc = |line: &str| line.get(..16).is_some_and(|start| start.eq_ignore_ascii_case("application/grpc"));
    if !lines(headers, &CONTENT_TYPE).any(is_grpc) {
        return Trailers::default();
    }
    let statuses = || lines(headers, &STATUS).filter_map(form::digits);
    if !statuses().any(|status| status != OK) {
        return Trailers::default();
    }
    let pushbacks = || lines(headers, &PUSHBACK).map(form::digits);
    // gRFC A6: a pushback that is negative or unreadable asks for no retry.
    let no_retry = pushbacks().any(|pushback| pushback.is_none());
    let pushback = pushbacks().flatten().max().map(Duration::from_millis);
    let after = pushback.filter(|after| !after.is_zero()).or_else(|| {
        let details = lines_up_to(MOST_BYTES, headers, &DETAILS).flat_map(|line| line.split(','));
        details.filter_map(retry_info::read).max()
    });
    let rejection = statuses().any(|status| match status {
        RESOURCE_EXHAUSTED => true,
        UNAVAILABLE => pushback.is_some() || after.is_some(),
        _ => false,
    });
    Trailers { rejection, no_retry, after: after.filter(|after| rejection && !after.is_zero()) }
}
