//! An upstream that limits requests and tokens, as those of language models do: both are
//! kept, and what it says of one does not pause the other. In paused time.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn, util::BoxCloneService};
use tower_ratelimit::{
    ChargeHandle, Descriptor, Policy, Quota, RateLimitLayer, RateLimiter, Rule, cost, testing::TokioClock,
};

const RUN: Duration = Duration::from_secs(600);

/// The time of each response: what it says of times is counted from its `Date`.
const NOW: SystemTime = SystemTime::UNIX_EPOCH;

/// The families of fields in which the upstream reports, and the form of their times.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Family {
    OpenAi,
    Anthropic,
    /// `RateLimit-Policy` with `qu`.
    Draft,
}

/// A bucket of so many units a minute, which starts full.
struct Bucket {
    limit: f64,
    left: f64,
    at: Instant,
}

impl Bucket {
    fn new(limit: u32) -> Self {
        Self { limit: limit.into(), left: limit.into(), at: Instant::now() }
    }

    fn refill(&mut self) {
        let refilled = self.at.elapsed().as_secs_f64() / 60.0 * self.limit;
        (self.left, self.at) = ((self.left + refilled).min(self.limit), Instant::now());
    }

    fn put(&self, headers: &mut HeaderMap, family: Family, unit: &'static str) {
        let left = self.left.max(0.0).floor();
        let full_in = Duration::from_secs_f64((self.limit - self.left) / self.limit * 60.0);
        let mut put = |name: String, value: String| {
            let name = http::HeaderName::try_from(name).unwrap();
            headers.append(name, HeaderValue::try_from(value).unwrap());
        };
        match family {
            Family::OpenAi => {
                put(format!("x-ratelimit-limit-{unit}"), self.limit.to_string());
                put(format!("x-ratelimit-remaining-{unit}"), left.to_string());
                put(format!("x-ratelimit-reset-{unit}"), format!("{}ms", full_in.as_millis()));
            }
            Family::Anthropic => {
                let at = humantime::format_rfc3339_seconds(NOW + full_in);
                put(format!("anthropic-ratelimit-{unit}-limit"), self.limit.to_string());
                put(format!("anthropic-ratelimit-{unit}-remaining"), left.to_string());
                put(format!("anthropic-ratelimit-{unit}-reset"), at.to_string());
                put("date".into(), httpdate::fmt_http_date(NOW));
            }
            Family::Draft => {
                put("ratelimit-policy".into(), format!("\"of-{unit}\";q={};w=60;qu=\"{unit}\"", self.limit));
                put("ratelimit".into(), format!("\"of-{unit}\";r={left};t={}", full_in.as_secs() + 1));
            }
        }
    }
}

/// What a call reserves, of which it takes less.
const RESERVED: f64 = 300.0;

/// The upstream: its buckets of requests and tokens, and what it has served and rejected.
struct Api {
    family: Family,
    buckets: [(Bucket, &'static str); 2],
    /// Requests and tokens that were served, and rejections.
    counts: [u64; 3],
}

impl Api {
    fn new(family: Family, [requests, tokens]: [u32; 2]) -> Arc<Mutex<Self>> {
        let buckets = [(Bucket::new(requests), "requests"), (Bucket::new(tokens), "tokens")];
        Arc::new(Mutex::new(Self { family, buckets, counts: [0; 3] }))
    }

    /// Takes a request, and what it reserves; or rejects it.
    fn arrive(&mut self) -> Response<()> {
        let costs = [1.0, RESERVED];
        self.buckets.iter_mut().for_each(|(bucket, _)| bucket.refill());
        let mut response = Response::new(());
        if self.buckets.iter().zip(costs).all(|((bucket, _), cost)| bucket.left >= cost) {
            self.buckets.iter_mut().zip(costs).for_each(|((bucket, _), cost)| bucket.left -= cost);
            self.counts[0] += 1;
        } else {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            self.counts[2] += 1;
        }
        self.buckets.iter().for_each(|(bucket, unit)| bucket.put(response.headers_mut(), self.family, unit));
        response
    }

    fn settle(&mut self, taken: f64) {
        self.buckets[1].0.left += RESERVED - taken;
        self.counts[1] += taken as u64;
    }
}

type Client = BoxCloneService<Request<()>, Response<()>, BoxError>;

fn client(limiter: RateLimiter, upstream: Client) -> Client {
    let layer = RateLimitLayer::client(limiter).cost_in("tokens", cost::header("x-max-tokens"));
    BoxCloneService::new(layer.layer(upstream))
}

fn limiter(policy: Policy) -> RateLimiter {
    RateLimiter::builder().policy(policy).clock(TokioClock::default()).build().unwrap()
}

/// Answers after a second or two and 20 to 60 ms on the way, and settles what the answer took.
#[allow(clippy::disallowed_methods, reason = "time is paused, and calls take some")]
fn serve(api: Arc<Mutex<Api>>) -> Client {
    let random = Arc::new(Mutex::new(7_u64));
    BoxCloneService::new(service_fn(move |request: Request<()>| {
        let (api, random) = (Arc::clone(&api), Arc::clone(&random));
        let draw = move |most: u64| {
            let mut random = random.lock().unwrap();
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*random >> 33) % most
        };
        async move {
            let charge = request.extensions().get::<ChargeHandle>().unwrap();
            sleep(Duration::from_millis(20 + draw(40))).await;
            let response = api.lock().unwrap().arrive();
            let taken = if response.status() == 200 { 150 + draw(150) } else { 0 };
            if taken > 0 {
                sleep(Duration::from_millis(1_000 + draw(1_000))).await;
                api.lock().unwrap().settle(taken as f64);
            }
            sleep(Duration::from_millis(20 + draw(40))).await;
            charge.settle_in("tokens", taken);
            Ok::<_, BoxError>(response)
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn both_limits_of_an_upstream_are_kept_and_the_one_that_binds_is_used() {
    for family in [Family::OpenAi, Family::Anthropic, Family::Draft] {
        for (limits, binds) in [([600, 30_000], 1), ([60, 300_000], 0)] {
            let api = Api::new(family, limits);
            // Bursts are a little smaller than the upstream's, which sees requests later.
            let [requests, tokens] =
                limits.map(|limit| Quota::per_minute(limit.into()).burst(u64::from(limit) * 9 / 10));
            let policy = Policy::new()
                .rule(Rule::new("requests").tier(requests).max_wait(RUN))
                .rule(Rule::new("tokens").unit("tokens").tier(tokens).max_wait(RUN).settle(true));
            let client = client(limiter(policy), serve(Arc::clone(&api)));
            let (start, mut tasks) = (Instant::now(), JoinSet::new());
            for _ in 0..40 {
                let mut client = client.clone();
                tasks.spawn(async move {
                    while start.elapsed() < RUN {
                        let request = Request::post("https://api.example.com/v1/chat").header("x-max-tokens", 300);
                        let _ = client.ready().await.unwrap().call(request.body(()).unwrap()).await;
                    }
                });
            }
            let _ = tokio::time::timeout(RUN, async { while tasks.join_next().await.is_some() {} }).await;
            let [requests, tokens, rejected] = api.lock().unwrap().counts;
            let used = [requests, tokens][binds] * 100 / (u64::from(limits[binds]) * 10);
            assert_eq!(rejected, 0, "{family:?}: {requests} requests, {tokens} tokens");
            assert!((90..=109).contains(&used), "{family:?}: {requests} requests, {tokens} tokens: {used} %");
        }
    }
}

/// A client whose upstream gives this response, and its limiter.
fn answering(family: Family, left: [f64; 2], rejection: Option<&'static str>) -> (Client, RateLimiter) {
    let policy = Policy::new()
        .rule(Rule::new("requests").tier(Quota::per_minute(600)))
        .rule(Rule::new("tokens").path("/v1/chat").unit("tokens").tier(Quota::per_minute(30_000)));
    let limiter = limiter(policy);
    let upstream = service_fn(move |_: Request<()>| {
        let mut response = Response::new(());
        for ((limit, unit), left) in [(600, "requests"), (30_000, "tokens")].into_iter().zip(left) {
            Bucket { left, ..Bucket::new(limit) }.put(response.headers_mut(), family, unit);
        }
        if let Some(after) = rejection {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            response.headers_mut().insert("retry-after", HeaderValue::from_static(after));
        }
        async { Ok::<_, BoxError>(response) }
    });
    (client(limiter.clone(), BoxCloneService::new(upstream)), limiter)
}

#[tokio::test(start_paused = true)]
async fn what_an_upstream_says_of_a_unit_pauses_the_rules_of_that_unit() {
    // What is left of requests and tokens, a rejection's time, and whether requests pause
    // that take no tokens, and those that take some.
    let cases = [
        ([500.0, 20_000.0], None, [false, false]),
        ([500.0, 0.0], None, [false, true]),
        ([0.0, 20_000.0], None, [true, true]),
        // It needed 300.
        ([500.0, 299.0], Some("20"), [false, true]),
        ([0.0, 20_000.0], Some("20"), [true, true]),
        // By a limit that is not reported.
        ([500.0, 20_000.0], Some("20"), [true, true]),
    ];
    for family in [Family::OpenAi, Family::Anthropic, Family::Draft] {
        for (left, rejection, pauses) in cases {
            let (client, limiter) = answering(family, left, rejection);
            let request = Request::post("https://api.example.com/v1/chat").header("x-max-tokens", 300);
            client.oneshot(request.body(()).unwrap()).await.unwrap();
            let models = Descriptor::new("/v1/models").tenant("api.example.com");
            let chat = Descriptor::new("/v1/chat").tenant("api.example.com").cost_in("tokens", 300);
            let cools_down = [models, chat].map(|call| limiter.cooldown(&call));
            assert_eq!(cools_down.map(|time| time.is_some()), pauses, "{family:?}, {left:?}: {cools_down:?}");
        }
    }
}

/// An adaptive rate of tokens, and one of requests: only what is short slows down.
#[tokio::test(start_paused = true)]
async fn a_rejection_for_its_tokens_slows_no_rate_of_requests() {
    let adapting = |id| {
        let bounds = tower_ratelimit::AdaptiveRate::between(Quota::per_second(1), Quota::per_second(10_000));
        Rule::new(id).adaptive_rate(bounds.start(Quota::per_second(1_000)))
    };
    let limiter = limiter(Policy::new().rule(adapting("requests")).rule(adapting("tokens").unit("tokens")));
    let upstream = service_fn(|_: Request<()>| {
        let response = Response::builder().status(429).header("x-ratelimit-remaining-requests", 500);
        let response = response.header("x-ratelimit-remaining-tokens", 2).body(()).unwrap();
        async { Ok::<_, BoxError>(response) }
    });
    let request = Request::post("https://api.example.com/v1/chat").header("x-max-tokens", 3).body(()).unwrap();
    client(limiter.clone(), BoxCloneService::new(upstream)).oneshot(request).await.unwrap();
    let rates = limiter.adaptive_rates(&Descriptor::new("/v1/chat").tenant("api.example.com").cost_in("tokens", 3));
    assert_eq!(rates.iter().map(|rate| rate.rejections()).collect::<Vec<_>>(), [0, 1]);
    assert!(rates[0].rate() == 1_000.0 && rates[1].rate() < 1_000.0, "{rates:?}");
}

/// Rules in one unit only: what is reported of another one concerns them.
#[tokio::test(start_paused = true)]
async fn a_unit_that_no_rule_counts_pauses_all_rules() {
    for unit in ["requests", "tokens"] {
        let limiter = limiter(Policy::new().rule(Rule::new("only").unit(unit).tier(Quota::per_minute(6_000))));
        let upstream = service_fn(|_: Request<()>| {
            let response = Response::builder().header("x-ratelimit-remaining-requests", 500);
            let response = response.header("anthropic-ratelimit-output-tokens-remaining", 0);
            let response = response.header("anthropic-ratelimit-output-tokens-reset", "2100-01-01T00:00:00Z");
            let response = response.header("date", "Thu, 31 Dec 2099 23:59:00 GMT").body(()).unwrap();
            async { Ok::<_, BoxError>(response) }
        });
        let request = Request::post("https://api.example.com/v1/chat").header("x-max-tokens", 300).body(()).unwrap();
        client(limiter.clone(), BoxCloneService::new(upstream)).oneshot(request).await.unwrap();
        let call = Descriptor::new("/v1/chat").tenant("api.example.com");
        assert!(limiter.cooldown(&call).is_some_and(|time| time > Duration::from_secs(50)), "{unit}");
    }
}
