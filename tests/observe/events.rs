use std::{
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tower_ratelimit::{
    Descriptor, FailureMode, MissingTenant, Policy, Quota, RateLimiter, Rule,
    backend::Local,
    descriptor::TenantId,
    error::BackendErrorKind,
    overload::{self, Overload},
    testing::{Fault, FaultyBackend, ManualClock},
};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Registry,
    layer::{Context, Layer, SubscriberExt},
};

use super::{SECRET, ask, limiter};

type Seen = (Level, BTreeMap<&'static str, String>);

/// Records all events of this thread.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<Seen>>>);

impl Log {
    /// Also for tests that look at no event: an event that a thread without a subscriber is the
    /// first to reach, while this one is set up, may stay off for all threads.
    pub(super) fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
        (log, guard)
    }

    /// The events of a level. Clears the log.
    pub(super) fn take(&self, level: Level) -> Vec<BTreeMap<&'static str, String>> {
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        assert!(all.iter().all(|(_, fields)| fields.values().all(|value| !value.contains(SECRET))), "{all:?}");
        all.into_iter().filter(|(of, _)| *of == level).map(|(_, fields)| fields).collect()
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push((*event.metadata().level(), fields.0));
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

fn login_and_search() -> Policy {
    Policy::new()
        .rule(Rule::new("login").path("/login").tier(Quota::per_minute(1)))
        .rule(Rule::new("search").path("/search").tier(Quota::per_minute(1)))
}

#[tokio::test]
async fn rejections_log_one_event_a_second_that_counts_the_suppressed_ones() {
    let (log, _guard) = Log::start();
    let (limiter, clock) = limiter(login_and_search());
    ask(&limiter, "/login", 1).await;
    assert_eq!(log.take(Level::WARN), []);

    ask(&limiter, "/login", 5).await;
    let [rejected] = &log.take(Level::WARN)[..] else { panic!("not one event") };
    assert_eq!(rejected["message"], "rate limit exceeded");
    assert_eq!((&*rejected["rule"], &*rejected["suppressed"]), ("login", "0"));
    assert!(rejected["retry_after_ms"].contains("60000"), "{rejected:?}");

    clock.advance(Duration::from_secs(1));
    ask(&limiter, "/login", 3).await;
    let [rejected] = &log.take(Level::WARN)[..] else { panic!("not one event") };
    assert_eq!(rejected["suppressed"], "4");

    clock.advance(Duration::from_secs(1));
    ask(&limiter, "/login", 1).await;
    let [rejected] = &log.take(Level::WARN)[..] else { panic!("not one event") };
    assert_eq!(rejected["suppressed"], "2", "suppressed since the last event");
}

/// An operator must not look for a limit where there was none.
#[tokio::test]
async fn a_rejection_says_what_rejected() {
    let (log, _guard) = Log::start();
    let missing = Descriptor::new("/").on_missing_tenant(MissingTenant::Reject);
    let caller = Descriptor::new("/").tenant("acme");
    let message = async |quota: Quota, request: Descriptor<'_>, permits: usize| {
        let (limiter, _) = limiter(Policy::from(quota));
        let mut held = Vec::new();
        for _ in 0..permits {
            held.push(limiter.acquire(&request, Duration::ZERO).await.unwrap());
        }
        assert!(!limiter.check(&request).await.is_allowed());
        log.take(Level::WARN)[0]["message"].clone()
    };
    assert_eq!(message(Quota::per_minute(1), missing, 0).await, "request rejected: it has no tenant");
    assert_eq!(message(Quota::concurrent(1), caller.clone(), 1).await, "concurrency limit reached");
    let never = "request rejected: it costs more than the limit ever holds";
    assert_eq!(message(Quota::per_minute(1), caller.clone().cost(2), 0).await, never);
    let (limiter, _) = limiter(Policy::from(Quota::per_minute(1)));
    limiter.check(&caller.cost(2)).await;
    let event = &log.take(Level::WARN)[0];
    assert_eq!((&*event["cost"], &*event["capacity"]), ("2", "1"));
}

#[tokio::test]
async fn rejections_of_one_rule_do_not_suppress_those_of_another() {
    let (log, _guard) = Log::start();
    let (limiter, _) = limiter(login_and_search());
    ask(&limiter, "/login", 10).await;
    ask(&limiter, "/search", 2).await;
    let rules: Vec<_> = log.take(Level::WARN).into_iter().map(|event| event["rule"].clone()).collect();
    assert_eq!(rules, ["login", "search"]);
}

#[tokio::test]
async fn each_decision_logs_a_debug_event() {
    let (log, _guard) = Log::start();
    let (limiter, _) = limiter(Quota::per_minute(2));
    ask(&limiter, "/", 3).await;
    let logged = log.take(Level::DEBUG);
    let logged: Vec<_> = logged.iter().map(|event| (&*event["result"], &*event["remaining"])).collect();
    assert_eq!(logged, [("allowed", "1"), ("allowed", "0"), ("rejected", "0")]);
}

#[tokio::test]
async fn a_shadow_rejection_logs_an_info_event() {
    let (log, _guard) = Log::start();
    let (limiter, _) = limiter(Policy::new().rule(Rule::new("dry-run").shadow(true).tier(Quota::per_minute(1))));
    assert!(ask(&limiter, "/", 3).await.iter().all(tower_ratelimit::Decision::is_allowed));
    let [logged] = &log.take(Level::INFO)[..] else { panic!("not one event") };
    assert_eq!(logged["rule"], "dry-run");
    assert_eq!(logged["message"], "a shadow rule would have rejected");
}

/// Whom it would have rejected: in the form in which a tenant may be written to a log.
#[tokio::test(start_paused = true)]
async fn a_shadow_rejection_names_the_path_and_the_fingerprint_of_the_tenant() {
    let trial = |id: &str| Rule::new(id).shadow(true).tier(Quota::per_minute(0));
    let policy =
        Policy::new().rule(trial("each")).rule(trial("all").per([])).rule(Rule::new("r").tier(Quota::per_hour(9)));
    let (log, _guard) = Log::start();
    for fault in [Fault::None, Fault::Slow] {
        let backend = FaultyBackend::new(Local::new());
        backend.set(fault);
        let limiter = RateLimiter::builder().policy(policy.clone()).backend(backend).build().unwrap();
        assert!(ask(&limiter, "/v1/search", 1).await[0].is_allowed());
        let [each, all] = &log.take(Level::INFO)[..] else { panic!("not two events") };
        assert_eq!((&*each["rule"], &*each["path"], &*all["path"]), ("each", "/v1/search", "/v1/search"), "{fault:?}");
        assert_eq!(each["tenant"], format!("{:?}", TenantId::Name(SECRET)));
        assert!(!all.contains_key("tenant"), "the rule does not count by it: {all:?}");
    }
}

#[tokio::test]
async fn a_backend_failure_logs_an_error_event() {
    let (log, _guard) = Log::start();
    let down = FaultyBackend::new(Local::new());
    down.set(Fault::Error(BackendErrorKind::Unavailable));
    let limiter = RateLimiter::builder().policy(login_and_search()).backend(down).build().unwrap();
    ask(&limiter, "/login", 1).await;
    let [logged] = &log.take(Level::ERROR)[..] else { panic!("not one event") };
    assert_eq!((&*logged["rule"], &*logged["fails"], &*logged["kind"]), ("login", "open", "unavailable"));
    assert_eq!(logged["error"], "the test set this fault");
}

#[tokio::test]
async fn backend_failures_are_logged_once_a_second_and_rule_independently_of_rejections() {
    let (log, _guard) = Log::start();
    let (down, clock) = (FaultyBackend::new(Local::new()), ManualClock::new());
    let rule = |id, mode| Rule::new(id).tier(Quota::per_minute(1)).on_backend_failure(mode);
    let policy = Policy::new().rule(rule("local", FailureMode::Local)).rule(rule("open", FailureMode::Open));
    let limiter = RateLimiter::builder().policy(policy).backend(down.clone()).clock(clock.clone()).build().unwrap();
    ask(&limiter, "/", 2).await;
    assert_eq!(log.take(Level::WARN).len(), 1, "a rejection");
    down.set(Fault::Error(BackendErrorKind::Timeout));
    for suppressed in ["0", "9"] {
        ask(&limiter, "/", 10).await;
        let logged = log.take(Level::ERROR);
        let logged: Vec<_> =
            logged.iter().map(|event| ["rule", "fails", "suppressed"].map(|field| &*event[field])).collect();
        assert_eq!(logged, [["local", "local", suppressed], ["open", "open", suppressed]]);
        clock.advance(Duration::from_secs(1));
    }
}

/// A WebSocket outlives the response that opens it: 101, or over HTTP/2 a
/// success of a CONNECT.
#[tokio::test]
async fn an_upgraded_connection_under_a_concurrency_limit_is_logged_once() {
    use http::{Method, Request, Response};
    use tower::{Layer as _, ServiceExt, service_fn};
    let (log, _guard) = Log::start();
    let send = async |limiter: &RateLimiter, method: Method, status: u16| {
        let upgrade = service_fn(move |_: Request<String>| {
            let response = Response::builder().status(status).body(String::new()).unwrap();
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        });
        let request = Request::builder().method(method).uri("https://example.com/chat").body(String::new()).unwrap();
        let response = tower_ratelimit::RateLimitLayer::new(limiter.clone())
            .tenant(tower_ratelimit::tenant::from_fn(|_| Some("acme")))
            .layer(upgrade)
            .oneshot(request)
            .await;
        assert_eq!(response.unwrap().status(), status);
    };
    let limiter = |id, quota| RateLimiter::new(Policy::new().rule(Rule::new(id).tier(quota))).unwrap();
    let rate = limiter("rate", Quota::per_second(10));
    send(&rate, Method::GET, 101).await;
    send(&rate, Method::CONNECT, 200).await;
    let sockets = limiter("sockets", Quota::concurrent(10));
    send(&sockets, Method::GET, 200).await;
    send(&sockets, Method::CONNECT, 502).await;
    assert_eq!(log.take(Level::WARN).len(), 0, "a rate counts them whole, and a concurrency limit these");
    for (method, status) in [(Method::GET, 101), (Method::CONNECT, 200)] {
        let sockets = limiter("sockets", Quota::concurrent(10));
        for _ in 0..3 {
            send(&sockets, method.clone(), status).await;
        }
        let events = log.take(Level::WARN);
        assert_eq!(events.len(), 1, "{method}: {events:?}");
        assert_eq!(events[0]["rule"], "sockets");
    }
}

/// Although its signal is above its threshold only now and then.
#[tokio::test]
async fn an_overload_is_logged_when_it_starts_and_ends() {
    let (log, _guard) = Log::start();
    let (load, clock) = (Arc::new(AtomicU64::new(0)), ManualClock::new());
    let signal = {
        let load = Arc::clone(&load);
        overload::named("queue", move || load.load(Ordering::Relaxed) as f64)
    };
    let policy = Policy::from(Quota::per_day(1_000_000)).overload(Overload::new().signal(signal, 100.0));
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    let run = async |loads: [u64; 2], times: usize, level: Level| {
        for of in (0..times).flat_map(|_| loads) {
            load.store(of, Ordering::Relaxed);
            for _ in 0..50 {
                clock.advance(Duration::from_millis(20));
                limiter.check(&Descriptor::new("/")).await;
            }
        }
        log.take(level).into_iter().filter(|event| event.contains_key("threshold")).collect::<Vec<_>>()
    };
    let starts = run([110, 90], 10, Level::WARN).await;
    assert_eq!(starts.len(), 1, "{starts:?}");
    assert_eq!([&starts[0]["signal"], &starts[0]["value"], &starts[0]["threshold"]], ["queue", "110.0", "100.0"]);
    assert!(run([110, 90], 10, Level::INFO).await.is_empty(), "it has not ended");
    let ends = run([90, 90], 10, Level::INFO).await;
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["value"], "90.0");
    assert_eq!(run([110, 110], 1, Level::WARN).await.len(), 1, "the next one");
}

/// Panics at the next event once it is set.
#[derive(Clone, Default)]
struct BrokenLog(Arc<AtomicBool>);

impl<S: Subscriber> Layer<S> for BrokenLog {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        assert!(!self.0.swap(false, Ordering::Relaxed), "the log is broken");
    }
}

#[tokio::test]
async fn a_log_that_panics_keeps_no_unit_in_flight() {
    let log = BrokenLog::default();
    let _guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
    let limiter = RateLimiter::new(Quota::concurrent(2)).unwrap();
    let caller = Descriptor::new("/").tenant(SECRET);
    // From now on there is a counter.
    drop(limiter.acquire(&caller, Duration::ZERO).await.unwrap());
    for _ in 0..3 {
        log.0.store(true, Ordering::Relaxed);
        let acquire = || limiter.acquire(&caller, Duration::ZERO).now_or_never();
        assert!(catch_unwind(AssertUnwindSafe(acquire)).is_err(), "each allow is logged");
    }
    assert_eq!(limiter.peek(&caller).await.remaining(), Some(2));
}
