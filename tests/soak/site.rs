//! The servers: two instances that share a Redis, and one that counts locally.
//! All watch one policy file, whose limits change again and again.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use tokio::{
    net::TcpListener,
    time::{Instant, interval},
};
use tower_ratelimit::{
    Policy, RateLimitLayer, RateLimiter,
    backend::{Local, Redis},
    policy_source::{FileSource, WatchHandle},
    tenant,
};

use super::{
    DEADLINE,
    ledger::{Ledger, Limit},
    pause,
    redis_server::Server,
};

/// The limits change between these, per second.
const RATES: [u64; 2] = [40, 60];

pub(crate) const CONCURRENT: u64 = 8;

const HIGHEST: Limit = Limit { rate: RATES[1] as f64, burst: RATES[1] as f64, per_fault: 0.0 };

/// The limit that a path has at most, as far as the soak checks it.
fn limit_of(path: &str) -> Option<Limit> {
    Some(match path {
        "/closed" => Limit { per_fault: HIGHEST.burst, ..HIGHEST },
        "/waits" => Limit { burst: 5.0, per_fault: 5.0, ..HIGHEST },
        // Each instance has its own half while the store fails.
        "/local" => Limit { per_fault: 3.0 * HIGHEST.burst, ..HIGHEST },
        _ => return None,
    })
}

fn yaml(rate: u64) -> String {
    let rule = |name: &str, burst: u64, more: &str| {
        format!(
            "  - {{ id: {name}, match: {{ paths: [/{name}] }}, tiers: [{{ limit: {rate}, window: 1s, burst: {burst} }}], {more} }}\n"
        )
    };
    format!(
        "rules:\n{}{}{}{}{}",
        rule("closed", rate, "on_backend_failure: closed"),
        rule("waits", 5, "max_wait: 300ms, on_backend_failure: closed"),
        rule("local", rate, "on_backend_failure: local, local_share: 0.5"),
        format_args!(
            "  - {{ id: slow, match: {{ paths: [/slow] }}, per: [], tiers: [{{ concurrent: {CONCURRENT} }}], \
             max_wait: 200ms, on_backend_failure: closed }}\n"
        ),
        "  - { id: flood, fallback: true, tiers: [{ limit: 5, window: 10s }] }\n",
    )
}

pub(crate) struct Site {
    limiters: Vec<RateLimiter>,
    /// Two instances over Redis, then the local one.
    pub(crate) addresses: Vec<SocketAddr>,
    file: PathBuf,
    _watches: Vec<WatchHandle>,
}

impl Site {
    pub(crate) async fn start(redis: &Server, ledger: &Arc<Ledger>) -> Self {
        let file = std::env::temp_dir().join(format!("tower-ratelimit-soak-{}.yaml", std::process::id()));
        std::fs::write(&file, yaml(RATES[0])).unwrap();
        let mut site = Self { limiters: Vec::new(), addresses: Vec::new(), file, _watches: Vec::new() };
        let policy = || Policy::from_yaml(&yaml(RATES[0])).unwrap();
        for _ in 0..2 {
            // The ledger excuses what a fault admits for two seconds: by then the
            // breaker has closed.
            let (shortest, longest) = (Duration::from_millis(50), Duration::from_millis(250));
            let backend = Redis::builder().url(redis.url()).deadline(DEADLINE).breaker(5, shortest, longest);
            let backend = backend.connect().await.unwrap();
            let limiter = RateLimiter::builder().policy(policy()).backend(backend).build().unwrap();
            site.serve(limiter, Some(ledger)).await;
        }
        let backend = Local::builder().max_keys(10_000).build();
        site.serve(RateLimiter::builder().policy(policy()).backend(backend).build().unwrap(), None).await;
        site
    }

    async fn serve(&mut self, limiter: RateLimiter, ledger: Option<&Arc<Ledger>>) {
        let ledger = ledger.cloned();
        let app = Router::new()
            .fallback(move |request| handle(request, ledger.clone()))
            .layer(RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key")));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.addresses.push(listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        self._watches.push(limiter.watch(FileSource::new(&self.file)).unwrap());
        self.limiters.push(limiter);
    }

    /// An instance over Redis.
    pub(crate) fn limiter(&self) -> &RateLimiter {
        &self.limiters[0]
    }

    /// Changes the limits until `end`. Returns how often.
    pub(crate) fn reloads(&self, end: Instant) -> impl Future<Output = usize> + Send + 'static {
        let file = self.file.clone();
        async move {
            let mut ticks = interval(Duration::from_millis(700));
            let mut reloads = 0;
            while Instant::now() < end {
                ticks.tick().await;
                let new = file.with_extension("new");
                // Every tenth policy is invalid.
                let text = if reloads % 10 == 9 { "rules: [".to_owned() } else { yaml(RATES[reloads % 2]) };
                std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &file)).unwrap();
                reloads += 1;
            }
            reloads
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting() + self.permits() == 0
    }

    pub(crate) fn waiting(&self) -> usize {
        self.limiters.iter().map(|limiter| limiter.stats().waiting).sum()
    }

    pub(crate) fn permits(&self) -> usize {
        self.limiters.iter().map(|limiter| limiter.stats().permits).sum()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

async fn handle(request: Request<Body>, ledger: Option<Arc<Ledger>>) -> StatusCode {
    let Some(ledger) = ledger else { return StatusCode::OK };
    let path = request.uri().path();
    if path == "/slow" {
        let _in_flight = InFlight::begin(ledger);
        pause(Duration::from_millis(40)).await;
    } else if let Some(limit) = limit_of(path) {
        let tenant = request.headers().get("x-api-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
        ledger.admitted(format!("{path} of {tenant}"), limit);
    }
    StatusCode::OK
}

/// A handler may be dropped: its caller has left.
struct InFlight(Arc<Ledger>);

impl InFlight {
    fn begin(ledger: Arc<Ledger>) -> Self {
        ledger.begin(CONCURRENT);
        Self(ledger)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.end();
    }
}
