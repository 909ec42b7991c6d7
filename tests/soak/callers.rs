//! The load: steady callers above their limits, callers that wait and leave,
//! slow requests, a flood of invented tenants, and decisions whose time is
//! measured.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tower_ratelimit::{Descriptor, RateLimiter};

use super::{DEADLINE, site::Site};

/// The outcomes of all requests and decisions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
    /// Answered with 503: the store failed, and the rule fails closed.
    pub(crate) failed: u64,
    /// The caller has left before the response.
    pub(crate) abandoned: u64,
    decisions: u64,
    beyond_deadline: u64,
    longest: Duration,
    /// When each decision began and ended that was later than the deadline and
    /// [`SLACK`].
    late: Vec<(Instant, Instant)>,
}

/// What a decision may take beyond its deadline on a machine that never stalls.
const SLACK: Duration = Duration::from_millis(50);

impl Counts {
    /// Decisions that were late, without those that a stall of the machine
    /// explains.
    pub(crate) fn late(&self, stalls: &[(Instant, Instant)]) -> usize {
        let overlap = |(start, end): (Instant, Instant)| {
            let shared = stalls.iter().map(|stall| end.min(stall.1).saturating_duration_since(start.max(stall.0)));
            shared.sum::<Duration>()
        };
        let is_late = |late: &&(Instant, Instant)| (late.1 - late.0).saturating_sub(overlap(**late)) > DEADLINE + SLACK;
        self.late.iter().filter(is_late).count()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { admitted, rejected, failed, abandoned, decisions, beyond_deadline, longest, .. } = self;
        writeln!(f, "requests: {admitted} admitted, {rejected} rejected, {failed} failed, {abandoned} abandoned")?;
        write!(f, "decisions: {decisions}, {beyond_deadline} beyond {DEADLINE:?}, longest {longest:?}")
    }
}

pub(crate) struct Callers(JoinSet<Counts>);

impl Callers {
    pub(crate) fn start(site: &Site, end: Instant) -> Self {
        let mut callers = JoinSet::new();
        let [first, second, local] = site.addresses[..] else { panic!("three servers") };
        for server in [first, second] {
            for caller in 0..4 {
                let tenant = move |_: u64| format!("tenant-{}", caller % 2);
                callers.spawn(call(server, "/closed", tenant, Patience::Waits, end));
                callers.spawn(call(server, "/local", tenant, Patience::Waits, end));
                callers.spawn(call(server, "/waits", tenant, Patience::Waits, end));
                callers.spawn(call(server, "/waits", tenant, Patience::Leaves, end));
                callers.spawn(call(server, "/slow", tenant, Patience::Waits, end));
                callers.spawn(call(server, "/slow", tenant, Patience::Leaves, end));
            }
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let invented = |_: u64| format!("invented-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        for server in [first, local, local] {
            callers.spawn(call(server, "/", invented, Patience::Waits, end));
        }
        for _ in 0..2 {
            callers.spawn(decide(site.limiter().clone(), end));
        }
        Self(callers)
    }

    pub(crate) async fn join(self) -> Counts {
        let add = |sum: Counts, one: Counts| Counts {
            admitted: sum.admitted + one.admitted,
            rejected: sum.rejected + one.rejected,
            failed: sum.failed + one.failed,
            abandoned: sum.abandoned + one.abandoned,
            decisions: sum.decisions + one.decisions,
            beyond_deadline: sum.beyond_deadline + one.beyond_deadline,
            longest: sum.longest.max(one.longest),
            late: [sum.late, one.late].concat(),
        };
        self.0.join_all().await.into_iter().fold(Counts::default(), add)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    Waits,
    /// Closes the connection of every third request after 10 ms.
    Leaves,
}

/// One request after the other, at most 250 a second.
async fn call(
    server: SocketAddr,
    path: &'static str,
    tenant: impl Fn(u64) -> String + Send + 'static,
    patience: Patience,
    end: Instant,
) -> Counts {
    let client: Client<HttpConnector, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let mut counts = Counts::default();
    let mut ticks = interval(Duration::from_millis(4));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for nth in 0.. {
        if ticks.tick().await > end {
            break;
        }
        let request = Request::get(format!("http://{server}{path}")).header("x-api-key", tenant(nth));
        let response = client.request(request.body(Empty::new()).unwrap());
        let leaves = patience == Patience::Leaves && nth % 3 == 0;
        let longest = if leaves { Duration::from_millis(10) } else { Duration::from_secs(60) };
        match timeout(longest, response).await {
            Err(_) if leaves => counts.abandoned += 1,
            Err(_) => panic!("{path}: no response within {longest:?}"),
            Ok(response) => {
                let response = response.unwrap();
                match response.status() {
                    StatusCode::OK => counts.admitted += 1,
                    StatusCode::TOO_MANY_REQUESTS => counts.rejected += 1,
                    StatusCode::SERVICE_UNAVAILABLE => counts.failed += 1,
                    other => panic!("{path}: {other}"),
                }
                response.into_body().collect().await.unwrap();
            }
        }
    }
    counts
}

/// Decisions without HTTP, whose time is measured.
async fn decide(limiter: RateLimiter, end: Instant) -> Counts {
    let mut counts = Counts::default();
    let mut ticks = interval(Duration::from_millis(2));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while ticks.tick().await < end {
        let start = Instant::now();
        let tenant: Arc<str> = format!("decision-{}", counts.decisions % 100).into();
        limiter.check(&Descriptor::new("/decisions").tenant(&*tenant)).await;
        let time = start.elapsed();
        counts.decisions += 1;
        counts.beyond_deadline += u64::from(time > DEADLINE);
        if time > DEADLINE + SLACK {
            counts.late.push((start, start + time));
        }
        counts.longest = counts.longest.max(time);
    }
    counts
}

/// When the machine did not run a task whose time had come: from when to when.
pub(crate) async fn stalls(end: Instant) -> Vec<(Instant, Instant)> {
    const TICK: Duration = Duration::from_millis(5);
    let mut stalls = Vec::new();
    while Instant::now() < end {
        let due = Instant::now() + TICK;
        sleep_until(due).await;
        let now = Instant::now();
        if now > due + TICK {
            stalls.push((due, now));
        }
    }
    stalls
}
