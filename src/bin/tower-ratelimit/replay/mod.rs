//! `replay`: decides the requests of access logs under a policy, and says what it would have done.
//!
//! The real limiter decides, on a clock that the log drives: it never goes back, and stands
//! still unless it is moved. Invariant: memory does not grow with the length of the log.

mod lines;
mod record;
mod report;
mod tally;

use std::{
    borrow::Cow,
    future::{Future, poll_fn},
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    pin::Pin,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};
use serde_json::{Value, json};
use smallvec::SmallVec;
use tokio::time::Instant;
use tower_ratelimit::{
    Algorithm, Policy, Quota, RateLimiter, Rule,
    decision::Decision,
    time::{Clock, Timestamp},
};

use self::{
    lines::{LONGEST, Lines},
    record::{LogArguments, LogFormat, Record},
    report::{LogLines, Report, Shape, shortened},
    tally::Tally,
};
use super::command::{Failure, PolicyFile, print, print_json};

/// Replays access logs under a policy: what it would have allowed, rejected and delayed
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The policy that decides
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Another policy, such as the one in force, to compare with
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// The logs in the order of their times, plain or gzip; `-` for standard input
    #[arg(default_value = "-")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    log: LogArguments,
    /// Prints JSON instead of lines
    #[arg(long)]
    json: bool,
    /// Writes a page with tables and a chart as well
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// For each rule, the token bucket that would have rejected at most so many percent of the tenants
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = percent)]
    recommend: Option<f64>,
    /// Makes a line that cannot be read an error
    #[arg(long)]
    strict: bool,
    /// The most tenants that are listed of each rule
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "must be a number from 0 to 100".into())
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let format = LogFormat::new(&arguments.log);
    let format = format.map_err(Failure::usage)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime =
        runtime.enable_time().start_paused(true).build().map_err(|error| Failure::usage(error.to_string()))?;
    let report = runtime.block_on(replay(arguments, &format))?;
    if let Some(file) = &arguments.html {
        let page = report.page().map_err(io::Error::other);
        let written = page.and_then(|page| std::fs::write(file, page));
        written.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    }
    if arguments.json { print_json(&report) } else { print(&report.to_string()) }
}

async fn replay(arguments: &Arguments, format: &LogFormat) -> Result<Report, Failure> {
    let clock = LogClock::new();
    let decider = |file: &Path| {
        let file = PolicyFile::new(file);
        let policy = file.read()?;
        let decider =
            Decider::new(&policy, &clock).map_err(|error| Failure::invalid(format!("{}: {error}", file.name())))?;
        Ok((policy, decider))
    };
    let (policy, after) = decider(&arguments.policy)?;
    let before = arguments.against.as_deref().map(decider).transpose()?.map(|(_, before)| before);
    let mut notes = notes(&policy);
    let mut has_tenant = false;
    let ids = policy.rules().iter().map(|rule| rule.id());
    let tally = Tally::new(ids, arguments.recommend.is_some());
    let shape = Shape { top: arguments.top, is_compared: arguments.against.is_some(), recommend: arguments.recommend };
    let deciders = [after].into_iter().chain(before).collect();
    let mut replay = Replay { clock: clock.clone(), deciders, waiting: FuturesUnordered::new(), tally };
    let mut log = LogLines::default();
    for file in &arguments.files {
        let unreadable = |error: io::Error| Failure::usage(format!("{}: {error}", file.display()));
        let mut lines = Lines::open(file).map_err(unreadable)?;
        let mut number = 0_u64;
        while let Some((line, is_whole)) = lines.next().map_err(unreadable)? {
            number += 1;
            log.read += 1;
            // The check alone is several times faster.
            let line = std::str::from_utf8(line).map_or_else(|_| String::from_utf8_lossy(line), Cow::from);
            let record = if is_whole { format.read(&line) } else { Err(format!("is longer than {LONGEST} bytes")) };
            match record {
                Ok(record) => {
                    has_tenant |= record.tenant.is_some();
                    replay.decide(record).await;
                }
                Err(reason) => {
                    let place = format!("{}:{number}: {}", file.display(), shortened(&reason));
                    if arguments.strict {
                        return Err(Failure::invalid(place));
                    }
                    log.unreadable += 1;
                    if log.examples.len() < MOST_EXAMPLES {
                        log.examples.push(place);
                    }
                }
            }
            if number.is_multiple_of(LINES_PER_PROGRESS) {
                show_progress(log.read, lines.percent());
            }
        }
    }
    show_progress(log.read, Some(100));
    replay.finish().await;
    if !has_tenant && log.read > log.unreadable {
        let field = format.tenant_field();
        notes.push(format!("no line has `{field}`, so all requests were counted as one tenant's: see --tenant"));
    }
    Ok(Report::new(&replay.tally, log, notes, shape))
}

/// The most lines that cannot be read and are shown.
const MOST_EXAMPLES: usize = 10;

const LINES_PER_PROGRESS: u64 = 100_000;

/// On a terminal only.
fn show_progress(lines: u64, percent: Option<u64>) {
    let mut terminal = io::stderr();
    if terminal.is_terminal() {
        let percent = percent.map(|percent| format!("{percent:>3}% ")).unwrap_or_default();
        let end = if percent.starts_with("100") { "\n" } else { "" };
        let _ = write!(terminal, "\r{percent}{lines} lines{end}");
    }
}

/// By the policy, and by the other one if there is one; `None` as [`Decider::decide`] has it.
type Decisions = SmallVec<[Option<Decision>; 2]>;

type Decided = (Record, Decisions);

/// A log that is being decided.
struct Replay {
    clock: LogClock,
    /// One for each policy.
    deciders: Vec<Decider>,
    /// Requests that wait for their time.
    waiting: FuturesUnordered<Pin<Box<dyn Future<Output = Decided>>>>,
    tally: Tally,
}

impl Replay {
    async fn decide(&mut self, record: Record) {
        self.move_clock(record.time).await;
        let decisions: Decisions = self.deciders.iter().map(|decider| decider.at_once(&record)).collect();
        if decisions.iter().all(Option::is_some) {
            return self.tally.add(&record, &decisions);
        }
        let deciders = self.deciders.clone();
        let mut decided: Pin<Box<dyn Future<Output = Decided>>> = Box::pin(async move {
            // A decision that was made at once is kept: it has charged.
            let decide = async |(made, decider): (Option<Decision>, &Decider)| match made {
                Some(made) => Some(made),
                None => decider.decide(&record).await,
            };
            let decisions = join_all(decisions.into_iter().zip(&deciders).map(decide)).await;
            (record, decisions.into())
        });
        match poll_fn(|context| Poll::Ready(decided.as_mut().poll(context))).await {
            Poll::Ready((record, decisions)) => self.tally.add(&record, &decisions),
            Poll::Pending => self.waiting.push(decided),
        }
    }

    /// Waits until the time of the next request. Requests whose time comes before it leave first.
    async fn move_clock(&mut self, time: u64) {
        const MILLI: u64 = 1_000_000;
        loop {
            let left = self.clock.left(time);
            // Tokio's timers count milliseconds.
            if self.waiting.is_empty() || left < MILLI {
                return self.clock.skip(left);
            }
            let nap = Duration::from_millis(left / MILLI);
            if let Ok(Some((record, decisions))) = tokio::time::timeout(nap, self.waiting.next()).await {
                self.tally.add(&record, &decisions);
            }
        }
    }

    /// All that still wait leave.
    async fn finish(&mut self) {
        while let Some((record, decisions)) = self.waiting.next().await {
            self.tally.add(&record, &decisions);
        }
    }
}

/// The time of the log. While requests wait, Tokio's paused time moves it; else it is set.
#[derive(Clone, Debug)]
struct LogClock {
    start: Instant,
    ahead: Arc<AtomicU64>,
}

impl LogClock {
    fn new() -> Self {
        Self { start: Instant::now(), ahead: Arc::default() }
    }

    /// How much later `time` is than now, in nanoseconds.
    fn left(&self, time: u64) -> u64 {
        time.saturating_sub(self.now().as_nanos())
    }

    fn skip(&self, nanos: u64) {
        self.ahead.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for LogClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.ahead.load(Ordering::Relaxed)).saturating_add(self.start.elapsed())
    }
}

/// A policy on counters of its own.
#[derive(Clone, Debug)]
struct Decider {
    limiter: RateLimiter,
    /// Whether a request that is admitted at once may be delayed, or settled by the status of
    /// its response.
    is_paced_or_settled: bool,
}

impl Decider {
    fn new(policy: &Policy, clock: &LogClock) -> Result<Self, String> {
        let mut written = serde_json::to_value(policy).map_err(|error| error.to_string())?;
        let mut is_paced_or_settled = false;
        for rule in written["rules"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            is_paced_or_settled |= ["charge_on", "refund_on", "smooth"].iter().any(|key| rule.contains_key(*key));
            // A layer rejects at once what may not wait, `acquire` only if the rule says so.
            if !rule.contains_key("exempt") {
                rule.entry("max_wait").or_insert(json!("0s"));
            }
        }
        let policy = serde_json::from_value::<Policy>(written).map_err(|error| error.to_string())?;
        let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build();
        Ok(Self { limiter: limiter.map_err(|error| error.to_string())?, is_paced_or_settled })
    }

    /// The decision of a request that is admitted as it arrives. Any other is charged nothing.
    fn at_once(&self, record: &Record) -> Option<Decision> {
        if self.is_paced_or_settled {
            return None;
        }
        self.limiter.try_check(&record.descriptor()).filter(Decision::is_allowed)
    }

    /// The decision, when the request leaves; `None` where a rejection does not tell more.
    async fn decide(&self, record: &Record) -> Option<Decision> {
        match self.limiter.acquire(&record.descriptor(), Duration::MAX).await {
            Ok(permit) => {
                let decision = permit.decision().clone();
                // A request that the server rejected has no status of its own.
                let status = record.status.filter(|status| *status != 429);
                if let Some(status) = status.and_then(|status| http::StatusCode::from_u16(status).ok()) {
                    permit.finish(status);
                }
                Some(decision)
            }
            Err(rejected) => rejected.decision().cloned(),
        }
    }
}

/// What a replay leaves out of a policy.
fn notes(policy: &Policy) -> Vec<String> {
    let written = serde_json::to_value(policy).unwrap_or_default();
    let is_concurrency = |quota: &Quota| quota.counted_by() == Algorithm::Concurrency;
    let note = |(rule, written): (&Rule, &Value)| match written["shadow"] == true {
        true => Some(format!("rule `{}` is in shadow mode, so it rejects nothing and is not counted", rule.id())),
        false if written["match"]["headers"].is_object() => {
            Some(format!("rule `{}` is not replayed: a log does not have the headers that it is for", rule.id()))
        }
        false if rule.tiers().iter().any(is_concurrency) => Some(format!(
            "the concurrency limit of rule `{}` is not replayed: a log does not say how long requests ran",
            rule.id()
        )),
        false => None,
    };
    policy.rules().iter().zip(written["rules"].as_array().into_iter().flatten()).filter_map(note).collect()
}
