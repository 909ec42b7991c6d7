use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::super::*;
use crate::{
    decision::{Decision, TierNameStyle},
    quota::Quota,
    time::Timestamp,
    unit::Unit,
};

fn tier(rule: &str, violated: bool) -> TierStatus {
    let rule = Box::leak(Box::new(&*String::from(rule).leak()));
    let quota = Quota::per_second(10);
    TierStatus {
        rule,
        quota,
        remaining: 0,
        reset: 1_000_000_000,
        naming: TierNameStyle::ByWindow,
        violated,
        unit: Unit::default(),
    }
}

fn rejected(kind: RateLimitedKind, retry_after: Option<u64>, tiers: &[TierStatus]) -> RateLimited {
    let mut decision = Decision::unlimited();
    tiers.iter().for_each(|tier| decision.add_tier(*tier));
    decision.reject(kind, Timestamp::from_secs(1_700_000_000), retry_after);
    RateLimited::new(decision)
}

async fn body(response: Response<Full<Bytes>>) -> Value {
    let length = response.headers()["content-length"].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body.len().to_string(), length);
    serde_json::from_slice(&body).unwrap()
}

fn rejection(rejected: RateLimited, headers: &Headers) -> Response<Full<Bytes>> {
    problem(rejected, headers, Response::default(), identity)
}

#[tokio::test]
async fn a_quota() {
    let tiers = [tier("get-product", true), tier("everything", false), tier("a\"b\\c%", true)];
    let response = rejection(rejected(RateLimitedKind::QuotaExceeded, Some(1_500_000_000), &tiers), &Headers::ALL);
    assert_eq!(response.status(), 429);
    let expected = [
        ("content-type", "application/problem+json"),
        ("cache-control", "no-store"),
        ("retry-after", "2"),
        ("x-ratelimit-remaining", "0"),
    ];
    for (name, value) in expected {
        assert_eq!(response.headers()[name], value);
    }
    assert!(response.headers().contains_key("ratelimit-policy"));
    let rejection = response.extensions().get::<RateLimited>().unwrap();
    assert_eq!(rejection.kind(), RateLimitedKind::QuotaExceeded);
    assert_eq!(
        body(response).await,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": "Too little of the quota is left. Try again in 2 seconds.",
            "violated-policies": ["get-product-1s", "a\"b\\c%-1s"],
        })
    );
}

#[tokio::test]
async fn a_never() {
    let response = rejection(rejected(RateLimitedKind::NeverFits, None, &[tier("r", true)]), &Headers::NONE);
    assert_eq!(response.status(), 429);
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(
        body(response).await,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": "The quota can never hold this request.",
            "violated-policies": ["r-1s"],
        })
    );
}

#[tokio::test]
async fn a_failed_backend() {
    let response = rejection(rejected(RateLimitedKind::BackendUnavailable, None, &[]), &Headers::ALL);
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(
        body(response).await,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Temporary Reduced Capacity",
            "status": 503,
            "detail": "The rate limit could not be decided. Try again in 1 second.",
        })
    );
}

#[tokio::test]
async fn a_missing_tenant() {
    let response = rejection(rejected(RateLimitedKind::MissingTenant, None, &[]), &Headers::ALL);
    assert_eq!(response.status(), 401);
    assert_eq!(response.headers().len(), 3, "{:?}", response.headers());
    assert_eq!(
        body(response).await,
        json!({
            "type": "about:blank",
            "title": "Unauthorized",
            "status": 401,
            "detail": "The request does not identify its tenant.",
        })
    );
}

#[tokio::test]
async fn a_full_queue_and_a_backoff() {
    for (kind, status, detail) in [
        (RateLimitedKind::QueueFull, 429, "Too many requests are waiting already. Try again in 3 seconds."),
        (RateLimitedKind::BackingOff, 503, "It has failed recently. Try again in 3 seconds."),
    ] {
        let tiers = [tier("r", kind == RateLimitedKind::QueueFull)];
        let response = rejection(rejected(kind, Some(2_500_000_000), &tiers), &Headers::NONE);
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["retry-after"], "3");
        let body = body(response).await;
        assert_eq!((&body["detail"], &body["status"]), (&json!(detail), &json!(status)));
        let violated = (status == 429).then(|| json!(["r-1s"]));
        assert_eq!(body.get("violated-policies"), violated.as_ref());
    }
}

#[tokio::test]
async fn each_rejection_states_its_own_delay() {
    for seconds in [7, 7, 8, 1, 86_399, 86_399, 86_398, 7] {
        let tiers = [tier("r", true)];
        let rejected = rejected(RateLimitedKind::QuotaExceeded, Some(seconds * 1_000_000_000), &tiers);
        let response = rejection(rejected, &Headers::NONE);
        assert_eq!(response.headers()["retry-after"], seconds.to_string());
        let unit = if seconds == 1 { "second" } else { "seconds" };
        let detail = format!("Too little of the quota is left. Try again in {seconds} {unit}.");
        assert_eq!(body(response).await["detail"], detail);
    }
}

/// One of them fills a map of its own, the other writes to one that may have fields.
#[test]
fn headers_of_a_response_are_those_that_are_stamped_on_one() {
    let zero = TierStatus { quota: Quota::per_second(0), ..tier("zero", true) };
    let long = TierStatus { quota: Quota::per_day(3), reset: 86_399_000_000_000, ..tier("long", true) };
    let sets = [vec![], vec![tier("r", true)], vec![tier("r", false), long], vec![zero, long, tier("r", true)]];
    let all = Headers::ALL;
    let options = [
        Headers::NONE,
        Headers::X_RATELIMIT,
        Headers::X_RATELIMIT.epoch_reset(true),
        Headers::X_RATELIMIT.ietf_draft_7(true),
        Headers::IETF,
        Headers::IETF_DRAFT_7,
        all,
        all.epoch_reset(true),
        all.max_bytes(0),
        all.max_bytes(260),
    ];
    use RateLimitedKind::{BackendUnavailable, NeverFits, QueueFull, QuotaExceeded};
    for (kind, retry_after) in [
        (QuotaExceeded, Some(7_000_000_000)),
        (QuotaExceeded, Some(86_399_000_000_000)),
        (NeverFits, None),
        (BackendUnavailable, None),
        (QueueFull, Some(1)),
    ] {
        for (tiers, options) in sets.iter().flat_map(|tiers| options.iter().map(move |options| (tiers, options))) {
            let rejected = rejected(kind, retry_after, tiers);
            let mut stamped = HeaderMap::new();
            stamped.insert(http::header::CACHE_CONTROL, NO_STORE);
            options.stamp_rejection(&mut stamped, &rejected);
            let filled = headers(&rejected, options);
            assert!(filled.iter().eq(stamped.iter()), "{filled:?} {stamped:?}");
        }
    }
}

/// Rejections that differ in one of their numbers, in turn: each of them several times in
/// a row, so that the fields of the last one are known.
#[tokio::test]
async fn the_fields_of_one_rejection_are_not_those_of_another() {
    use RateLimitedKind::{NeverFits, QuotaExceeded};
    let less = |name, remaining, reset| TierStatus { remaining, reset, ..tier(name, true) };
    let sets = [
        vec![tier("r", true)],
        vec![less("r", 1, 1)],
        vec![less("r", 1, 5_000_000_001)],
        vec![tier("r", true), less("s", 1, 1)],
        vec![less("r", 1, 1), tier("s", true)],
        vec![],
    ];
    let options = [
        Headers::NONE,
        Headers::X_RATELIMIT,
        Headers::X_RATELIMIT.epoch_reset(true),
        Headers::IETF,
        Headers::IETF_DRAFT_7,
        Headers::ALL,
        Headers::ALL.max_bytes(150),
    ];
    for kind_and_time in [(QuotaExceeded, Some(1)), (QuotaExceeded, Some(7_000_000_000)), (NeverFits, None)] {
        for repeats in 1..=4 {
            for (tiers, options) in sets.iter().flat_map(|tiers| options.iter().map(move |options| (tiers, options))) {
                for _ in 0..repeats {
                    let rejected = rejected(kind_and_time.0, kind_and_time.1, tiers);
                    let mut expected = headers(&rejected, options);
                    let response = problem(rejected, options, Response::default(), identity);
                    let (parts, body) = response.into_parts();
                    let length = http_body::Body::size_hint(&body).exact().unwrap();
                    expected.insert(http::header::CONTENT_TYPE, PROBLEM);
                    expected.insert(http::header::CONTENT_LENGTH, length.into());
                    assert_eq!(parts.headers, expected);
                }
            }
        }
    }
}

#[test]
fn a_response_keeps_nothing_of_the_request_but_its_memory() {
    let mut memory = Response::new(());
    memory.headers_mut().insert(http::header::COOKIE, HeaderValue::from_static("of the request"));
    memory.extensions_mut().insert("of the request");
    let rejected = rejected(RateLimitedKind::QuotaExceeded, None, &[]);
    let response = problem(rejected, &Headers::NONE, memory, identity);
    assert!(!response.headers().contains_key(http::header::COOKIE));
    assert_eq!(response.extensions().len(), 1);
    assert!(response.extensions().get::<RateLimited>().is_some());
}
