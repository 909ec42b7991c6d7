//! Costs in several units: what a layer finds, what headers say, what a handler settles.

use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    ChargeHandle, Decision, Descriptor, Headers, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead, Rule, cost,
    tenant,
};

use super::common::{Caller, limiter, serve};

fn policy() -> Policy {
    let tokens = |id, unit: &str| Rule::new(id).unit(unit).tier(Quota::per_minute(1_000)).settle(true);
    let uploads = Quota::per_hour(1_000);
    Policy::new()
        .rule(Rule::new("requests").tier(Quota::per_minute(10)))
        .rule(tokens("input", "input-tokens"))
        .rule(tokens("output", "output-tokens"))
        .rule(Rule::new("uploads").unit("content-bytes").tier(uploads).tier(Quota::concurrent(9_000)))
}

/// Settles the two numbers in the body: input and output tokens.
async fn serving(limiter: RateLimiter) -> Caller {
    let layer = RateLimitLayer::new(limiter)
        .tenant(tenant::header("x-api-key"))
        .headers(Headers::IETF)
        .cost_in("input-tokens", cost::header("x-prompt-tokens"))
        .cost_in("output-tokens", 200)
        .cost_in("content-bytes", cost::content_length());
    serve(layer.layer(service_fn(async |request: http::Request<hyper::body::Incoming>| {
        let (head, body) = request.into_parts();
        let charge = head.extensions.get::<ChargeHandle>().unwrap();
        let body = body.collect().await.unwrap().to_bytes();
        let used = String::from_utf8(body.to_vec()).unwrap();
        let (input, output) = used.split_once(' ').unwrap();
        charge.settle_in("input-tokens", input.parse().unwrap());
        charge.settle_in("output-tokens", output.parse().unwrap());
        Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::default()))
    })))
    .await
}

#[tokio::test]
async fn a_layer_states_costs_and_headers_list_units() {
    let (limiter, _clock) = limiter(policy());
    let server = serving(limiter).await;
    let send = async |used: &'static str| {
        let headers = [("x-api-key", &b"acme"[..]), ("x-prompt-tokens", b"50")];
        server.send(Method::POST, "/", &headers, used.into()).await
    };
    let reply = send("70 900").await;
    assert_eq!(reply.status, StatusCode::OK);
    let expected = "\"requests\";q=10;w=60, \"input\";q=1000;w=60;qu=\"input-tokens\", \
                    \"output\";q=1000;w=60;qu=\"output-tokens\", \"uploads-1h\";q=1000;w=3600;qu=\"content-bytes\", \
                    \"uploads-concurrent\";q=9000;qu=\"content-bytes\"";
    assert_eq!(reply.field("ratelimit-policy"), expected);
    let statuses = |reply: &super::common::Reply| -> Vec<i64> {
        reply.statuses().iter().map(|(_, parameters)| parameters["r"]).collect()
    };
    // As it was admitted: before it was settled.
    assert_eq!(statuses(&reply), [9, 950, 800, 994, 8_994]);
    // 930 input tokens are left, and 100 output tokens, which 200 exceed.
    let rejected = send("0 0").await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(statuses(&rejected), [9, 930, 100, 994, 9_000]);
}

#[tokio::test]
async fn a_layer_reserves_what_is_estimated_or_else_usual() {
    let tokens = Rule::new("tokens").unit("tokens").tier(Quota::per_day(1_000_000)).settle(true);
    let (limiter, _clock) = limiter(Policy::new().rule(tokens));
    let stated = |head: &RequestHead<'_>| head.headers().get("x-max-tokens")?.to_str().ok()?.parse().ok();
    let layer = RateLimitLayer::new(limiter)
        .tenant(tenant::header("x-api-key"))
        .expose(true)
        .cost_in("tokens", cost::estimated(500, stated));
    // Answers what is left, and settles 70.
    let service = layer.layer(service_fn(async |request: http::Request<()>| {
        let extensions = request.extensions();
        let left = extensions.get::<Decision>().unwrap().tiers()[0].remaining();
        extensions.get::<ChargeHandle>().unwrap().settle_in("tokens", 70);
        let response = http::Response::builder().header("x-left", left).body(Full::<bytes::Bytes>::default());
        Ok::<_, std::convert::Infallible>(response.unwrap())
    }));
    let mut left = 1_000_000_u64;
    let mut reserves = async |max_tokens: Option<&'static str>| {
        let request = http::Request::get("/").header("x-api-key", "acme");
        let request = max_tokens.into_iter().fold(request, |request, max| request.header("x-max-tokens", max));
        let response = service.clone().oneshot(request.body(()).unwrap()).await.unwrap();
        let after: u64 = response.headers()["x-left"].to_str().unwrap().parse().unwrap();
        let reserved = left - after;
        left -= 70;
        reserved
    };
    assert_eq!(reserves(Some("900")).await, 900);
    // Costs are remembered from the first request that knows none.
    for _ in 0..20 {
        assert_eq!(reserves(None).await, 500);
    }
    assert_eq!(reserves(None).await, 70);
    assert_eq!(reserves(Some("30")).await, 30);
}

#[tokio::test]
async fn the_bytes_of_a_response_are_charged_once_it_has_ended() {
    let rule = |id| Rule::new(id).unit("content-bytes").tier(Quota::per_hour(1_000));
    let policy = Policy::new().rule(rule("sent").per_response_byte(true)).rule(rule("received").settle(true));
    let (limiter, _clock) = limiter(policy);
    let layer = RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key"));
    let layer = layer.cost_in("content-bytes", cost::content_length());
    let server = serve(layer.layer(service_fn(async |request: http::Request<hyper::body::Incoming>| {
        let length = request.uri().path()[1..].parse().unwrap();
        Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::from(vec![0_u8; length])))
    })))
    .await;
    let request = Descriptor::new("/").tenant("acme").cost_in("content-bytes", 1);
    for (length, status, left) in
        [(400, 200, [600, 999]), (0, 200, [600, 998]), (900, 200, [0, 997]), (1, 429, [0, 997])]
    {
        let reply = server.call(Method::GET, &format!("/{length}"), &[("x-api-key", b"acme")]).await;
        assert_eq!(reply.status, status);
        // The server may still be dropping the body.
        let mut seen = Vec::new();
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
            seen = limiter.peek(&request).await.tiers().iter().map(|tier| tier.remaining()).collect();
            if seen == left {
                break;
            }
        }
        assert_eq!(seen, left, "after {length} bytes");
    }
}
