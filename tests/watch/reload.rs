//! The guarantees that hold for every source, and what operators see.

use std::{
    io,
    sync::{Arc, Mutex},
};

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::{
    sync::watch,
    time::{Duration, Instant},
};
use tower_ratelimit::{
    BoxFuture, Policy, Quota, RateLimiter, Rule,
    backend::Share,
    policy_source::{Document, PolicySource, SourceError, Watch},
};
use tracing_subscriber::fmt::MakeWriter;

use super::{GARBAGE, TIMEOUT, Watched, fake::fake, until, yaml};

/// Everything that was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines(&self, level: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let ours = |line: &&str| line.contains(level) && line.contains("source=\"logged\"");
        text.lines().filter(ours).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn an_error_is_logged_once_and_counted_each_time() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
    // Global: a thread without a subscriber could disable an event.
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let (script, source) = fake();
    let source = source.named("logged");
    let mut watched = Watched::new(Watch::new(source).retry(Duration::from_millis(1), Duration::from_millis(2)));
    script.holds(Document::yaml(yaml(10)));
    watched.follows(10).await;
    for _ in 0..3 {
        script.fails("gone");
        script.fails("still gone");
    }
    watched.keeps(10, "still gone").await;
    // Its last document is in force already.
    script.is_unchanged();
    watched.follows(10).await;
    for _ in 0..3 {
        script.holds(Document::yaml("rules: [{ id: all, tiers: [{ limit: 7, window: 0s }] }]"));
    }
    watched.keeps(10, "rule `all`: tiers[0].window").await;
    // Another document with the same error.
    script.holds(Document::yaml("rules: [{ id: all, tiers: [{ limit: 8, window: 0s }] }]"));
    watched.rejects(2, 10).await;
    script.fails("gone");
    watched.keeps(10, "gone").await;
    // Available again, with the same error as before.
    script.is_unchanged();
    watched.keeps(10, "rule `all`: tiers[0].window").await;
    script.holds(Document::yaml(yaml(20)));
    watched.follows(20).await;
    script.holds(Document::yaml(yaml(20)));
    script.fails("once more");
    watched.keeps(20, "once more").await;

    let status = watched.handle.status();
    assert_eq!((status.applied, status.rejected, status.unavailable), (2, 2, 8));
    let page = recorder.handle().render();
    for (result, count) in [("applied", 2), ("rejected", 2), ("unavailable", 8)] {
        let line = format!("rate_limiting_policy_reloads{{result=\"{result}\"}} {count}");
        assert!(page.contains(&line), "{line} in {page}");
    }
    let is_gone = |line: &str| line.starts_with("rate_limiting_policy_current{source=") && line.ends_with(" 0");
    assert!(page.lines().any(is_gone), "{page}");
    let warnings = log.lines("WARN");
    let logged = |reason: &str| warnings.iter().filter(|line| line.contains(reason)).count();
    assert_eq!(
        (logged("why=\"gone\""), logged("still gone"), logged("tiers[0].window"), logged("once more")),
        (2, 0, 1, 1)
    );
    assert_eq!(warnings.len(), 4, "{warnings:#?}");
    assert_eq!(log.lines("INFO").len(), 2 + 2, "two reloads and two recoveries: {:#?}", log.lines("INFO"));
}

#[tokio::test]
async fn an_invalid_document_is_never_put_in_force() {
    let (script, source) = fake();
    let mut watched = Watched::new(source);
    script.holds(Document::yaml(yaml(10)));
    watched.follows(10).await;
    let bad = GARBAGE.map(Document::yaml).into_iter().chain([
        Document::invalid("is of another kind"),
        Document::policy(Policy::new().rule(Rule::new("all").tier(Quota::per_second(5).burst(0)))),
        Document::yaml(yaml(20)).instances(0),
        Document::yaml(yaml(20)).instances(u64::MAX),
        Document::yaml(yaml(20) + "\ninstances: -1"),
        Document::yaml(yaml(20) + "\ninstances: 1.5"),
        Document::yaml("\u{0}\u{1}"),
        Document::yaml("a: &a [*a, *a]"),
        Document::yaml("[".repeat(100_000)),
    ]);
    for (nth, document) in (1..).zip(bad) {
        script.holds(document);
        watched.rejects(nth, 10).await;
    }
    script.holds(Document::yaml(yaml(30)));
    watched.follows(30).await;
}

#[tokio::test]
async fn dropping_the_handle_stops_the_watch_and_keeps_the_policy() {
    let (script, source) = fake();
    let mut watched = Watched::new(source);
    script.holds(Document::yaml(yaml(10)));
    watched.follows(10).await;
    assert!(!watched.handle.is_stopped());
    drop(watched.handle);
    until("the source to be dropped", async || script.is_dropped().then_some(())).await;
    assert_eq!(*watched.limiter.policy(), super::policy(10));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_at_once_is_asked_after_growing_delays() {
    let (script, source) = fake();
    let watched = Watched::new(Watch::new(source).retry(Duration::from_secs(1), Duration::from_secs(8)));
    let start = Instant::now();
    (0..100).for_each(|_| script.fails("gone"));
    while script.asked() < 100 {
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    // 1, 2, 4 and then 8 s, each shortened to no less than half.
    let (min, max) = (Duration::from_secs(7 + 95 * 8) / 2, Duration::from_secs(7 + 100 * 8));
    let took = start.elapsed();
    assert!((min..max).contains(&took), "{took:?}");
    assert_eq!(watched.handle.status().applied, 0);
}

/// Answers at once, always with the same document.
struct Restless(Arc<Mutex<u64>>);

impl PolicySource for Restless {
    fn name(&self) -> String {
        "restless".into()
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<Document>, SourceError>> {
        *self.0.lock().unwrap() += 1;
        Box::pin(async { Ok(Some(Document::yaml(yaml(10)))) })
    }
}

#[tokio::test]
async fn a_source_that_never_waits_does_not_block_other_tasks() {
    let asked = Arc::new(Mutex::new(0));
    let start = Instant::now();
    let mut watched = Watched::new(Restless(Arc::clone(&asked)));
    watched.follows(10).await;
    until("some calls", async || (*asked.lock().unwrap() >= 20).then_some(())).await;
    let (asked, took) = (u128::from(*asked.lock().unwrap()), start.elapsed());
    assert!(asked <= took.as_millis() / 10 + 2, "{asked} calls in {took:?}");
    assert_eq!(watched.handle.status().applied, 1, "applied once");
}

/// Panics on the second call.
struct Brittle(bool);

impl PolicySource for Brittle {
    fn name(&self) -> String {
        "brittle".into()
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<Document>, SourceError>> {
        assert!(!std::mem::replace(&mut self.0, true), "called twice");
        Box::pin(async { Ok(Some(Document::yaml(yaml(10)))) })
    }
}

#[tokio::test]
async fn a_source_that_panics_only_stops_its_watch() {
    let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
    let mut handle = limiter.watch(Brittle(false)).unwrap();
    let ended = tokio::time::timeout(TIMEOUT, handle.wait_for(|_| false)).await.unwrap();
    assert_eq!(ended, None);
    until("the end", async || handle.is_stopped().then_some(())).await;
    assert_eq!(*limiter.policy(), super::policy(10));
}

#[test]
fn watching_without_a_runtime_is_an_error() {
    let error = RateLimiter::new(Quota::per_hour(1)).unwrap().watch(Restless(Arc::default())).unwrap_err();
    assert_eq!(error.to_string(), "watch: needs a Tokio runtime");
}

#[test]
fn an_error_displays_all_its_causes() {
    let cause = SourceError::new("connection refused");
    assert_eq!(SourceError::new(cause).to_string(), "connection refused");
}

#[tokio::test]
async fn the_document_sets_the_number_of_instances() {
    let (script, source) = fake();
    let (sender, shares) = watch::channel(Share::none());
    let mut watched = Watched::new(Watch::new(source).share(3, sender));
    let share = || shares.borrow().clone();

    let document = yaml(10) + "\ninstances: 96";
    assert_eq!(Policy::from_yaml(&document).unwrap().instance_count(), Some(96));
    script.holds(Document::yaml(document));
    watched.follows(10).await;
    assert_eq!(share(), Share::new(3, 96).unwrap());
    script.holds(Document::yaml(yaml(20) + "\ninstances: 80"));
    watched.follows(20).await;
    assert_eq!(share(), Share::new(3, 80).unwrap());
    // Rejected whole: the limit does not change either.
    script.holds(Document::yaml(yaml(30) + "\ninstances: 0"));
    watched.keeps(20, "instances: `0`: must be from 1 to 1048576").await;
    script.holds(Document::policy(Policy::new().rule(Rule::new("all"))).instances(90));
    watched.rejects(2, 20).await;
    assert_eq!(share(), Share::new(3, 80).unwrap());
    script.holds(Document::yaml(yaml(40)));
    watched.follows(40).await;
    assert_eq!(share(), Share::new(3, 80).unwrap(), "the document has no `instances`");
    script.holds(Document::yaml(yaml(50) + "\ninstances: 7").instances(8));
    watched.follows(50).await;
    assert_eq!(share(), Share::new(3, 8).unwrap());
    // This instance loses its share.
    script.holds(Document::yaml(yaml(60) + "\ninstances: 3"));
    watched.follows(60).await;
    assert!(share().is_none());
}

#[tokio::test]
async fn an_ignored_number_of_instances_is_reported() {
    let (script, source) = fake();
    let mut watched = Watched::new(source);
    script.holds(Document::yaml(yaml(10)).instances(96));
    watched.follows(10).await;
    assert_eq!(watched.handle.status().ignored_instances, Some(96));
    script.holds(Document::yaml(yaml(20)));
    watched.follows(20).await;
    assert_eq!(watched.handle.status().ignored_instances, None);

    let (script, source) = fake();
    let (sender, shares) = watch::channel(Share::none());
    let mut watched = Watched::new(Watch::new(source).share(3, sender));
    script.holds(Document::yaml(yaml(10)).instances(96));
    watched.follows(10).await;
    assert_eq!(watched.handle.status().ignored_instances, None);
    assert_eq!(*shares.borrow(), Share::new(3, 96).unwrap());
}
