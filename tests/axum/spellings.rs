//! Other spellings of a path add charges, and take none away: a router sees the path
//! as it was sent.

use axum::Router;
use http::StatusCode;
use tower_ratelimit::{Policy, Quota, RateLimitLayer, Rule};

use super::{
    answer,
    common::{Caller, limiter},
    serve,
};

/// Answers every spelling, by the handlers that axum chooses.
async fn serving(layer: RateLimitLayer) -> Caller {
    let app = Router::new().route("/healthz", answer()).route("/files/{*path}", answer()).route("/{user}", answer());
    serve(app.fallback_service(answer()).layer(layer)).await
}

async fn limited(policy: Policy) -> Caller {
    serving(RateLimitLayer::new(limiter(policy).0)).await
}

/// How many of five requests are admitted.
async fn admitted(server: &Caller, path: &str) -> usize {
    let mut admitted = 0;
    for _ in 0..5 {
        admitted += usize::from(server.get(path).await.status == StatusCode::OK);
    }
    admitted
}

const OF_HEALTHZ: [&str; 6] =
    ["/files/../healthz", "/files/%2e%2e/healthz", "//healthz", "/healthz/", "/./healthz", "/%68ealthz"];

fn with_health(ignore_case: bool) -> Policy {
    Policy::new()
        .ignore_case(ignore_case)
        .rule(Rule::new("all").tier(Quota::per_hour(2)))
        .rule(Rule::new("health").path("/healthz").exempt(true))
}

#[tokio::test]
async fn another_spelling_reaches_no_exemption() {
    for path in OF_HEALTHZ {
        let server = limited(with_health(false)).await;
        assert_eq!(admitted(&server, path).await, 2, "{path}");
        assert_eq!(admitted(&server, "/healthz").await, 5);
        assert_eq!(admitted(&server, "/healthz?probe=1").await, 5);
    }
}

#[tokio::test]
async fn another_case_reaches_no_exemption() {
    for path in OF_HEALTHZ.into_iter().chain(["/HealthZ"]) {
        let server = limited(with_health(true)).await;
        assert_eq!(admitted(&server, path).await, 2, "{path}");
        assert_eq!(admitted(&server, "/healthz").await, 5);
    }
    // Of a pattern in capitals, small letters are the other spelling.
    let policy = Policy::new().ignore_case(true).rule(Rule::new("all").tier(Quota::per_hour(2)));
    let server = limited(policy.rule(Rule::new("health").path("/Healthz").exempt(true))).await;
    assert_eq!((admitted(&server, "/healthz").await, admitted(&server, "/Healthz").await), (2, 5));
}

/// A server behind this one may resolve the dots.
#[tokio::test]
async fn a_path_with_dots_is_never_exempt() {
    let policy = Policy::new().rule(Rule::new("all").tier(Quota::per_hour(2)));
    let server = limited(policy.rule(Rule::new("files").path("/files/{*path}").exempt(true))).await;
    assert_eq!(admitted(&server, "/files/../v1/search").await, 2);
    assert_eq!(admitted(&server, "/files/%2e%2e/v1/search").await, 0);
    for path in ["/files/a", "/files/a/", "/files/a%2eb//c", "/files/.a"] {
        assert_eq!(admitted(&server, path).await, 5, "{path}");
    }
}

#[tokio::test]
async fn another_spelling_escapes_no_fallback_rule() {
    let policy = || {
        Policy::new()
            .ignore_case(true)
            .rule(Rule::new("search").path("/v1/search").tier(Quota::per_hour(3)))
            .rule(Rule::new("rest").fallback(true).tier(Quota::per_hour(2)))
    };
    for path in ["/files/../v1/search", "/files/%2e%2e/v1/search", "//v1/search", "/v1/se%61rch", "/V1/search"] {
        let server = limited(policy()).await;
        assert_eq!(admitted(&server, path).await, 2, "{path}");
        assert_eq!(admitted(&server, "/v1/search").await, 1, "what the spelling was charged");
    }
    let server = limited(policy()).await;
    assert_eq!(admitted(&server, "/v1/search").await, 3);
}

#[tokio::test]
async fn another_spelling_reaches_no_higher_tiers() {
    let policy = |ignore_case| {
        let rule = Rule::new("r").path("/{org}/items").tenant_from_path("org").tier(Quota::per_hour(2));
        let rule =
            rule.tenant_unlimited("acme").tenant("hooli", [Quota::per_hour(4)]).tenant("spam", [Quota::per_hour(1)]);
        Policy::new().ignore_case(ignore_case).rule(rule)
    };
    for (path, expected) in [
        ("/acme/items", 5),
        // A router decodes parameters.
        ("/%61cme/items", 5),
        ("/hooli/items", 4),
        ("/acme//items", 2),
        ("/acme/items/", 2),
        ("/x/../acme/items", 2),
        ("/hooli/./items", 2),
        // Lower tiers take nothing away.
        ("/spam/items", 1),
        ("/spam//items", 1),
        ("/x/../spam/items", 1),
    ] {
        assert_eq!(admitted(&limited(policy(false)).await, path).await, expected, "{path}");
    }
    // The tenant's name is not the router's to match.
    for (path, expected) in [("/acme/items", 5), ("/ACME/items", 5), ("/SPAM/items", 1), ("/acme/ITEMS", 2)] {
        assert_eq!(admitted(&limited(policy(true)).await, path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn the_layer_skips_no_other_spelling() {
    let (limiter, _) = limiter(Policy::new().rule(Rule::new("all").tier(Quota::per_hour(2))));
    let server = serving(RateLimitLayer::new(limiter).skip(|head| head.uri().path() == "/healthz")).await;
    assert_eq!(admitted(&server, "/healthz").await, 5);
    assert_eq!(admitted(&server, "//healthz").await, 2);
    for path in OF_HEALTHZ {
        assert_eq!(admitted(&server, path).await, 0, "{path}");
    }
}
