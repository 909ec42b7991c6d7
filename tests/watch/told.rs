//! What is guaranteed whatever the source; and what operators are told.

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
    Policy, Quota, RateLimiter, Rule,
    backend::Share,
    policy_source::{Document, Next, PolicySource, SourceError, Update, Watch},
};
use tracing_subscriber::fmt::MakeWriter;

use super::{GARBAGE, PATIENCE, Watched, fake::fake, until, yaml};

/// All that was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines(&self, level: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let ours = |line: &&str| line.contains(level) && line.contains("source=\"told\"");
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
async fn what_is_wrong_is_said_once_and_counted_each_time() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
    // For all threads: else one that does not listen can switch an event off.
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let (voice, source) = fake();
    let source = source.named("told");
    let mut watched = Watched::new(Watch::new(source).retry(Duration::from_millis(1), Duration::from_millis(2)));
    voice.says(Document::yaml(yaml(10)));
    watched.follows(10).await;
    for _ in 0..3 {
        voice.fails("gone");
        voice.fails("still gone");
    }
    watched.stays_at(10, "still gone").await;
    // What it last said is in force already.
    voice.says_nothing_new();
    watched.follows(10).await;
    for _ in 0..3 {
        voice.says(Document::yaml("rules: [{ id: all, tiers: [{ limit: 7, window: 0s }] }]"));
    }
    watched.stays_at(10, "rule `all`: tiers[0].window").await;
    // Another one, and the same is wrong with it.
    voice.says(Document::yaml("rules: [{ id: all, tiers: [{ limit: 8, window: 0s }] }]"));
    watched.rejects(2, 10).await;
    voice.fails("gone");
    watched.stays_at(10, "gone").await;
    // Back, with what was wrong before.
    voice.says_nothing_new();
    watched.stays_at(10, "rule `all`: tiers[0].window").await;
    voice.says(Document::yaml(yaml(20)));
    watched.follows(20).await;
    voice.says(Document::yaml(yaml(20)));
    voice.fails("once more");
    watched.stays_at(20, "once more").await;

    let status = watched.watching.status();
    assert_eq!((status.applied, status.rejected, status.unavailable), (2, 2, 8));
    let page = recorder.handle().render();
    for (result, count) in [("applied", 2), ("rejected", 2), ("unavailable", 8)] {
        let line = format!("rate_limiting_policy_reloads{{result=\"{result}\"}} {count}");
        assert!(page.contains(&line), "{line} in {page}");
    }
    let warnings = log.lines("WARN");
    let said = |why: &str| warnings.iter().filter(|line| line.contains(why)).count();
    assert_eq!((said("why=\"gone\""), said("still gone"), said("tiers[0].window"), said("once more")), (2, 0, 1, 1));
    assert_eq!(warnings.len(), 4, "{warnings:#?}");
    assert_eq!(log.lines("INFO").len(), 2 + 2, "two policies in force, and two returns: {:#?}", log.lines("INFO"));
}

#[tokio::test]
async fn no_garbage_is_put_in_force() {
    let (voice, source) = fake();
    let mut watched = Watched::new(source);
    voice.says(Document::yaml(yaml(10)));
    watched.follows(10).await;
    let bad = GARBAGE.map(Document::yaml).into_iter().chain([
        Document::unusable("is of another kind"),
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
        voice.says(document);
        watched.rejects(nth, 10).await;
    }
    voice.says(Document::yaml(yaml(30)));
    watched.follows(30).await;
}

#[tokio::test]
async fn dropped_it_stops_and_leaves_the_policy_in_force() {
    let (voice, source) = fake();
    let mut watched = Watched::new(source);
    voice.says(Document::yaml(yaml(10)));
    watched.follows(10).await;
    assert!(!watched.watching.is_stopped());
    drop(watched.watching);
    until("the source to be dropped", async || voice.is_gone().then_some(())).await;
    assert_eq!(*watched.limiter.policy(), super::policy(10));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_at_once_is_left_alone_for_longer_and_longer() {
    let (voice, source) = fake();
    let watched = Watched::new(Watch::new(source).retry(Duration::from_secs(1), Duration::from_secs(8)));
    let start = Instant::now();
    (0..100).for_each(|_| voice.fails("gone"));
    while voice.asked() < 100 {
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    // 1, 2, 4, and 8 from then on, each cut to half of it at most.
    let (least, most) = (Duration::from_secs(7 + 95 * 8) / 2, Duration::from_secs(7 + 100 * 8));
    let took = start.elapsed();
    assert!((least..most).contains(&took), "{took:?}");
    assert_eq!(watched.watching.status().applied, 0);
}

/// Answers at once, and always the same.
struct Restless(Arc<Mutex<u64>>);

impl PolicySource for Restless {
    fn name(&self) -> String {
        "restless".into()
    }

    fn next(&mut self) -> Next<'_> {
        *self.0.lock().unwrap() += 1;
        Box::pin(async { Ok(Update::Changed(Document::yaml(yaml(10)))) })
    }
}

#[tokio::test]
async fn a_source_that_never_waits_leaves_time_for_others() {
    let asked = Arc::new(Mutex::new(0));
    let start = Instant::now();
    let mut watched = Watched::new(Restless(Arc::clone(&asked)));
    watched.follows(10).await;
    until("some questions", async || (*asked.lock().unwrap() >= 20).then_some(())).await;
    let (asked, took) = (u128::from(*asked.lock().unwrap()), start.elapsed());
    assert!(asked <= took.as_millis() / 10 + 2, "{asked} questions in {took:?}");
    assert_eq!(watched.watching.status().applied, 1, "it is put in force once");
}

/// Panics when it is asked a second time.
struct Brittle(bool);

impl PolicySource for Brittle {
    fn name(&self) -> String {
        "brittle".into()
    }

    fn next(&mut self) -> Next<'_> {
        assert!(!std::mem::replace(&mut self.0, true), "asked twice");
        Box::pin(async { Ok(Update::Changed(Document::yaml(yaml(10)))) })
    }
}

#[tokio::test]
async fn a_source_that_panics_takes_nothing_with_it() {
    let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
    let mut watching = limiter.watch(Brittle(false)).unwrap();
    let ended = tokio::time::timeout(PATIENCE, watching.wait_for(|_| false)).await.unwrap();
    assert_eq!(ended, None);
    until("the end", async || watching.is_stopped().then_some(())).await;
    assert_eq!(*limiter.policy(), super::policy(10));
}

#[test]
fn without_a_runtime_it_says_so() {
    let error = RateLimiter::new(Quota::per_hour(1)).unwrap().watch(Restless(Arc::default())).unwrap_err();
    assert_eq!(error.to_string(), "watch: needs a Tokio runtime");
}

#[test]
fn an_error_names_all_its_causes() {
    let cause = SourceError::new("connection refused");
    assert_eq!(SourceError::new(cause).to_string(), "connection refused");
}

#[tokio::test]
async fn the_document_says_how_many_instances_there_are() {
    let (voice, source) = fake();
    let (sender, shares) = watch::channel(Share::none());
    let mut watched = Watched::new(Watch::new(source).share(3, sender));
    let share = || shares.borrow().clone();

    let document = yaml(10) + "\ninstances: 96";
    assert!(Policy::from_yaml(&document).unwrap_err().to_string().contains("is no key here"));
    voice.says(Document::yaml(document));
    watched.follows(10).await;
    assert_eq!(share(), Share::new(3, 96).unwrap());
    voice.says(Document::yaml(yaml(20) + "\ninstances: 80"));
    watched.follows(20).await;
    assert_eq!(share(), Share::new(3, 80).unwrap());
    // Rejected as a whole.
    voice.says(Document::yaml(yaml(30) + "\ninstances: 0"));
    watched.stays_at(20, "instances: `0`: must be from 1 to 1048576").await;
    voice.says(Document::policy(Policy::new().rule(Rule::new("all"))).instances(90));
    watched.rejects(2, 20).await;
    assert_eq!(share(), Share::new(3, 80).unwrap());
    voice.says(Document::yaml(yaml(40)));
    watched.follows(40).await;
    assert_eq!(share(), Share::new(3, 80).unwrap(), "it does not say");
    voice.says(Document::yaml(yaml(50) + "\ninstances: 7").instances(8));
    watched.follows(50).await;
    assert_eq!(share(), Share::new(3, 8).unwrap());
    // This one has to go.
    voice.says(Document::yaml(yaml(60) + "\ninstances: 3"));
    watched.follows(60).await;
    assert!(share().is_none());
}

#[tokio::test]
async fn a_number_of_instances_that_nobody_heeds_is_told() {
    let (voice, source) = fake();
    let mut watched = Watched::new(source);
    voice.says(Document::yaml(yaml(10)).instances(96));
    watched.follows(10).await;
    assert_eq!(watched.watching.status().ignored_instances, Some(96));
    voice.says(Document::yaml(yaml(20)));
    watched.follows(20).await;
    assert_eq!(watched.watching.status().ignored_instances, None);

    let (voice, source) = fake();
    let (sender, shares) = watch::channel(Share::none());
    let mut watched = Watched::new(Watch::new(source).share(3, sender));
    voice.says(Document::yaml(yaml(10)).instances(96));
    watched.follows(10).await;
    assert_eq!(watched.watching.status().ignored_instances, None);
    assert_eq!(*shares.borrow(), Share::new(3, 96).unwrap());
}
