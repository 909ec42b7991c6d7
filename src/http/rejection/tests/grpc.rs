#![allow(clippy::unwrap_used)]

use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderValue, Response};
use http_body_util::Full;

use super::super::{grpc, violated_tiers};
use crate::{
    decision::{Decision, RateLimited, RateLimitedKind},
    descriptor::{Descriptor, MissingTenant, grpc::BASE64},
    headers::Headers,
    limiter::RateLimiter,
    policy::{Policy, Rule},
    quota::Quota,
};

/// The rejection by `policy` after one request.
fn rejected_by(policy: impl Into<Policy>) -> RateLimited {
    let limiter = RateLimiter::new(policy).unwrap();
    let mut rejected = None;
    for _ in 0..2 {
        let mut decision = Decision::unlimited();
        let caller = Descriptor::new("/shop.v1.Products/Get").on_missing_tenant(MissingTenant::Reject);
        let _ = limiter.decide(&caller, Duration::ZERO, &mut decision);
        rejected = Some(decision);
    }
    RateLimited::new(rejected.unwrap())
}

fn of_kind(kind: RateLimitedKind, after: Option<u64>) -> RateLimited {
    let mut decision = Decision::unlimited();
    decision.reject(kind, crate::time::Timestamp::UNIX_EPOCH, after);
    RateLimited::new(decision)
}

fn answer(rejected: RateLimited) -> Response<Full<Bytes>> {
    grpc(rejected, &Headers::ALL, HeaderValue::from_static("application/grpc+proto"), true)
}

fn text<'a>(response: &'a Response<Full<Bytes>>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

fn everyone(id: &str) -> Rule {
    Rule::new(id).per([]).tier(Quota::per_hour(1))
}

#[test]
fn a_rejection_is_trailers_only() {
    use http_body::Body;
    let response = answer(rejected_by(Policy::new().rule(everyone("get"))));
    assert_eq!(response.status(), 200);
    assert!(response.body().is_end_stream());
    assert_eq!(text(&response, "content-type"), "application/grpc+proto");
    assert_eq!(text(&response, "grpc-status"), "8");
    assert!(text(&response, "grpc-message").starts_with("rate limit exceeded: get; retry after "));
    assert_eq!(text(&response, "retry-after"), "3600");
    assert_eq!(text(&response, "ratelimit-policy"), r#""get";q=1;w=3600"#);
    let pushback: u64 = text(&response, "grpc-retry-pushback-ms").parse().unwrap();
    assert!((3_599_000..=3_610_000).contains(&pushback), "{pushback}");
    assert!(response.extensions().get::<RateLimited>().is_some());
}

#[test]
fn each_kind_has_its_code_and_its_delay() {
    for (kind, after, code, pushback, retry_after) in [
        (RateLimitedKind::QuotaExceeded, Some(1_500_000), "8", "2", "1"),
        (RateLimitedKind::QuotaExceeded, Some(0), "8", "1", "1"),
        (RateLimitedKind::QueueFull, Some(2_000_000_000), "8", "2000", "2"),
        (RateLimitedKind::QuotaExceeded, Some(u64::MAX - 1), "8", "2147483647", "18446744074"),
        (RateLimitedKind::NeverFits, None, "8", "-1", ""),
        (RateLimitedKind::BackendUnavailable, None, "14", "1000", "1"),
        (RateLimitedKind::BackingOff, Some(5_000_000_000), "14", "5000", "5"),
        (RateLimitedKind::MissingTenant, None, "16", "-1", ""),
    ] {
        let response = answer(of_kind(kind, after));
        assert_eq!(text(&response, "grpc-status"), code, "{kind:?}");
        let sent: i64 = text(&response, "grpc-retry-pushback-ms").parse().unwrap();
        let least: i64 = pushback.parse().unwrap();
        let most = least.saturating_add((least.max(0) + 9) / 10).min(i32::MAX.into());
        assert!((least..=most).contains(&sent), "{kind:?}: {sent}");
        assert_eq!(text(&response, "retry-after"), retry_after, "{kind:?}");
        assert_eq!(response.headers().contains_key("grpc-status-details-bin"), pushback != "-1", "{kind:?}");
    }
}

/// Clients that were rejected together do not return together.
#[test]
fn pushback_has_a_jitter_of_up_to_a_tenth() {
    let pushback = |_| {
        let response = answer(of_kind(RateLimitedKind::QuotaExceeded, Some(10_000_000_000)));
        text(&response, "grpc-retry-pushback-ms").parse::<u64>().unwrap()
    };
    let sent: Vec<u64> = (0..200).map(pushback).collect();
    let (first, last) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!((10_000..10_100).contains(first) && (10_900..=11_000).contains(last), "{first} {last}");
    let long = answer(of_kind(RateLimitedKind::QuotaExceeded, Some(1_000_000_000_000)));
    assert!(text(&long, "grpc-retry-pushback-ms").parse::<u64>().unwrap() <= 1_010_000);
}

#[test]
fn pushback_is_opt_in() {
    let json = HeaderValue::from_static("application/grpc+json");
    let response = grpc(rejected_by(Policy::new().rule(everyone("get"))), &Headers::NONE, json, false);
    assert!(!response.headers().contains_key("grpc-retry-pushback-ms"));
    assert!(!response.headers().contains_key("ratelimit"));
}

#[test]
fn a_message_is_legal_for_every_rule_name() {
    let response = answer(rejected_by(Policy::new().rule(everyone("50% \"over\""))));
    assert!(text(&response, "grpc-message").starts_with("rate limit exceeded: 50%25 \"over\"; "));
}

#[test]
fn headers_stay_within_the_limits_of_clients() {
    let mut policy = Policy::new();
    for n in 0..100 {
        policy = policy.rule(everyone(&format!("{n:03}-{}", "%".repeat(124))));
    }
    let rejected = rejected_by(policy);
    let names: usize = violated_tiers(&rejected).unwrap().map(|tier| tier.name().len()).sum();
    assert!(names > 12_000, "{names}");
    let response = grpc(rejected, &Headers::NONE, HeaderValue::from_static("application/grpc"), false);
    let sizes = ["grpc-message", "grpc-status-details-bin"].map(|name| text(&response, name).len());
    assert!(sizes[0] <= 3 * 1_024 && sizes[1] <= 6_000, "{sizes:?}");
}

#[test]
fn base64_has_no_padding() {
    for (bytes, expected) in [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")] {
        assert_eq!(BASE64.encode(bytes), expected);
    }
    assert_eq!(BASE64.encode([0xfb, 0xff, 0xfe]), "+//+");
}

#[cfg(feature = "tonic")]
mod with_tonic {
    use tonic::Status;
    use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

    use super::*;
    use crate::{decision::TierStatus, headers::delay, http::rejection::detail};

    fn several() -> Policy {
        let tiers = everyone("several").tier(Quota::per_minute(1)).tier(Quota::per_second(1_000_000).burst(1));
        Policy::new().rule(tiers).rule(everyone("over 100%"))
    }

    fn every_kind() -> impl Iterator<Item = RateLimited> {
        let times = [0, 1, 127, 128, 999_999_999, 1_000_000_000, 90_000_000_001, u64::MAX - 1].map(Some);
        let kinds = [RateLimitedKind::QuotaExceeded, RateLimitedKind::QueueFull, RateLimitedKind::BackingOff];
        let timed = kinds.into_iter().flat_map(move |kind| times.map(|after| of_kind(kind, after)));
        let never = Policy::new().rule(Rule::new("shut").per([]).tier(Quota::per_second(0)));
        timed
            .chain(
                [RateLimitedKind::MissingTenant, RateLimitedKind::BackendUnavailable].map(|kind| of_kind(kind, None)),
            )
            .chain([rejected_by(several()), rejected_by(never), rejected_by(Policy::new().rule(everyone("one")))])
    }

    /// The status as `tonic-types` encodes it.
    fn reference(rejected: &RateLimited) -> Status {
        let (code, message) = (rejected.to_status().code(), rejected.to_status().message().to_owned());
        let tiers: Vec<_> = violated_tiers(rejected).into_iter().flatten().collect();
        let (after, mut details) = (delay(rejected), ErrorDetails::new());
        if after.is_none() && tiers.is_empty() {
            return Status::new(code, message);
        }
        if after.is_some() {
            details.set_retry_info(after);
        }
        if !tiers.is_empty() {
            let violation = |tier: &&TierStatus| QuotaViolation::new(tier.name(), detail(rejected.kind()));
            details.set_quota_failure(tiers.iter().map(violation).collect::<Vec<_>>());
        }
        Status::with_error_details(code, message, details)
    }

    /// tonic's own encoding and decoding as the reference.
    #[test]
    fn the_encoding_equals_that_of_tonic() {
        for rejected in every_kind() {
            let expected = reference(&rejected).into_http::<()>();
            let response = answer(rejected.clone());
            for name in ["grpc-status", "grpc-status-details-bin"] {
                assert_eq!(response.headers().get(name), expected.headers().get(name), "{name} of {rejected:?}");
            }
            let read = Status::from_header_map(response.headers()).unwrap();
            let status = Status::from(rejected.clone());
            assert_eq!((read.code(), read.message()), (status.code(), status.message()));
        }
    }

    #[test]
    fn the_details_name_the_tiers_and_the_time() {
        let rejected = rejected_by(several());
        let read = Status::from_header_map(answer(rejected.clone()).headers()).unwrap();
        let failure = read.get_details_quota_failure().unwrap();
        let subjects: Vec<_> = failure.violations.iter().map(|violation| &*violation.subject).collect();
        assert_eq!(subjects, ["several-1h", "several-1m", "over 100%"]);
        assert_eq!(failure.violations[0].description, "Too little of the quota is left.");
        assert_eq!(read.get_details_retry_info().unwrap().retry_delay, rejected.retry_after());
    }
}
