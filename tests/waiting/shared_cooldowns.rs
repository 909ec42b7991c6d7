//! Cooldowns that limiters share through their backend.

use std::sync::Weak;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Dimension, RateLimitLayer, Tenant,
    backend::{Backend, CooldownNotice, Decide, Local, Receipt, Request as Charges},
    descriptor::{TenantId, TenantRef},
    testing::{Fault, FaultyBackend},
    time::Timestamp,
};

use super::*;

type CooldownListener = dyn Fn(&CooldownNotice<'_>) + Send + Sync;

/// A backend that records the cooldowns that limiters share, and the listeners
/// that subscribe.
#[derive(Clone, Debug, Default)]
struct Fleet(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    local: Local,
    shared: Mutex<Vec<String>>,
    listeners: Mutex<Vec<Weak<CooldownListener>>>,
}

impl Backend for Fleet {
    fn decide(&self, request: &Charges<'_>) -> Decide {
        self.0.local.decide(request)
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.0.local.refund(receipt, now);
    }

    fn share_cooldown(&self, notice: &CooldownNotice<'_>) {
        let CooldownNotice { rule, per_tenant, tenant, endpoint, method, time, .. } = notice;
        // `Debug` shows no names.
        let tenant = match tenant {
            Some(TenantId::Name(name)) => format!("Some(Name({name:?}))"),
            Some(TenantId::Address(address)) => format!("Some(Address({address}))"),
            _ => "None".to_owned(),
        };
        self.0.shared.lock().unwrap().push(format!("{rule} {per_tenant} {tenant} {endpoint} {method} {time:?}"));
    }

    fn subscribe_cooldowns(&self, listener: Weak<CooldownListener>) {
        self.0.listeners.lock().unwrap().push(listener);
    }
}

impl Fleet {
    fn shared(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.shared.lock().unwrap())
    }

    fn listeners(&self) -> usize {
        self.0.listeners.lock().unwrap().iter().filter(|listener| listener.strong_count() > 0).count()
    }

    fn broadcast(&self, notice: &CooldownNotice<'_>) {
        let listeners = self.0.listeners.lock().unwrap().clone();
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(notice));
    }
}

fn policy() -> Policy {
    let tier = Quota::per_second(100);
    Policy::new()
        .rule(Rule::new("calls").path("/v1/{id}").methods([http::Method::GET]).max_wait(SECOND * 60).tier(tier))
        .rule(Rule::new("all").path("/v1/{id}").per([] as [Dimension; 0]).tier(tier))
        .rule(Rule::new("no-feedback").path("/v1/{id}").upstream_feedback(false).tier(tier))
}

fn on(backend: impl Backend) -> RateLimiter {
    builder(policy()).backend(backend).build().unwrap()
}

fn get<'a>(tenant: impl Into<TenantRef<'a>>) -> Descriptor<'a> {
    Descriptor::new("/v1/7").method("GET").tenant(tenant)
}

#[tokio::test(start_paused = true)]
async fn each_key_and_the_requested_time_are_shared() {
    let fleet = Fleet::default();
    let limiter = on(Arc::new(FaultyBackend::new(fleet.clone())));
    limiter.cool_down(&get("acme"), SECOND * 2);
    limiter.cool_down(&get(Tenant::address([192, 0, 2, 7].into())), SECOND);
    assert_eq!(
        fleet.shared(),
        [
            "calls true Some(Name(\"acme\")) /v1/{id} GET 2s",
            "all false None   2s",
            "calls true Some(Address(192.0.2.7)) /v1/{id} GET 1s",
            "all false None   1s",
        ]
    );
    limiter.cool_down(&get("acme"), Duration::ZERO);
    assert_eq!(fleet.shared(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_received_cooldown_applies_and_is_not_shared_again() {
    let fleet = Fleet::default();
    let limiter = on(fleet.clone());
    assert_eq!(limiter.cooldown(&get("acme")), None);
    let mut notice = CooldownNotice::new("calls", SECOND * 2);
    (notice.per_tenant, notice.endpoint, notice.method) = (true, "/v1/{id}", "GET");
    notice.tenant = Some(TenantId::Name("acme"));
    fleet.broadcast(&notice);
    let left = limiter.cooldown(&get("acme")).unwrap();
    assert!(left >= SECOND * 2 && left <= MILLI * 2_500, "{left:?}");
    assert_eq!(limiter.cooldown(&get("globex")), None);
    // A cooldown that is not longer changes nothing.
    for time in [SECOND, SECOND * 2, Duration::ZERO] {
        notice.time = time;
        fleet.broadcast(&notice);
        assert_eq!(limiter.cooldown(&get("acme")), Some(left));
    }
    notice.time = Duration::MAX;
    fleet.broadcast(&notice);
    let left = limiter.cooldown(&get("acme")).unwrap();
    assert!(left >= SECOND * 3_600 && left <= SECOND * 3_610, "{left:?}");
    assert_eq!(fleet.shared(), [""; 0]);

    // A cooldown of the anonymous tenant does not apply to other tenants.
    (notice.time, notice.tenant) = (SECOND, None);
    fleet.broadcast(&notice);
    assert!(limiter.cooldown(&Descriptor::new("/v1/7").method("GET")).is_some());
    assert_eq!(limiter.cooldown(&get("globex")), None);
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_of_an_unknown_key_is_ignored() {
    let fleet = Fleet::default();
    let limiter = on(fleet.clone());
    assert_eq!(limiter.cooldown(&get("acme")), None);
    let broadcast = |rule, per_tenant, endpoint, method| {
        let mut notice = CooldownNotice::new(rule, SECOND);
        (notice.per_tenant, notice.endpoint, notice.method) = (per_tenant, endpoint, method);
        notice.tenant = per_tenant.then_some(TenantId::Name("acme"));
        fleet.broadcast(&notice);
        limiter.cooldown(&get("acme")).is_some()
    };
    for (rule, per_tenant, endpoint, method) in [
        ("gone", true, "/v1/{id}", "GET"),
        ("no-feedback", true, "/v1/{id}", ""),
        ("calls", false, "/v1/{id}", "GET"),
        ("calls", true, "/v1/7", "GET"),
        ("calls", true, "", "GET"),
        ("calls", true, "/v1/{id}", "get"),
        ("calls", true, "/v1/{id}", "POST"),
        // A rule that counts methods separately has no key for all methods.
        ("calls", true, "/v1/{id}", ""),
        ("all", true, "", ""),
        ("all", false, "/v1/{id}", ""),
    ] {
        assert!(!broadcast(rule, per_tenant, endpoint, method), "{rule} {per_tenant} {endpoint} {method}");
    }
    assert!(broadcast("all", false, "", ""));
}

/// A limiter without an upstream keeps no connection for cooldowns.
#[tokio::test(start_paused = true)]
async fn only_limiters_with_an_upstream_subscribe() {
    let fleet = Fleet::default();
    let limiter = on(fleet.clone());
    let answer = || service_fn(|_: Request<()>| async { Ok::<_, std::io::Error>(Response::new(String::new())) });
    let request = || Request::get("http://acme/v1/7").body(()).unwrap();
    RateLimitLayer::new(limiter.clone()).layer(answer()).oneshot(request()).await.unwrap();
    drop(limiter.acquire(&get("acme"), SECOND).await.unwrap());
    assert_eq!(fleet.listeners(), 0);
    let client = RateLimitLayer::client(limiter.clone());
    assert_eq!(fleet.listeners(), 1);
    client.layer(answer()).oneshot(request()).await.unwrap();
    limiter.cool_down(&get("acme"), SECOND);
    assert_eq!(fleet.0.listeners.lock().unwrap().len(), 1, "once");
    drop((client, limiter));
    assert_eq!(fleet.listeners(), 0, "the backend does not keep it");
    on(fleet.clone()).cool_down(&get("acme"), SECOND);
    assert_eq!(fleet.0.listeners.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_fails_shares_no_cooldown() {
    let fleet = Fleet::default();
    let faulty = FaultyBackend::new(fleet.clone());
    let limiter = on(faulty.clone());
    faulty.set(Fault::Never);
    limiter.cool_down(&get("acme"), SECOND);
    assert_eq!(fleet.shared(), [""; 0]);
    assert!(limiter.cooldown(&get("acme")).is_some());
}
