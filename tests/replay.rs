//! `tower-ratelimit replay`: its decisions are the server's, in every form of a log, and nothing
//! of a hostile log is passed on.
#![allow(clippy::unwrap_used)]

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::Duration,
};

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;
use tower_ratelimit::{Policy, RateLimitLayer, RateLimiter, tenant, testing::ManualClock, time::Clock};

/// Files of one test, which are removed when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tower-ratelimit-replay-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let file = self.0.join(name);
        std::fs::write(&file, content).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(arguments: &[&str], log: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tower-ratelimit"));
    command.arg("replay").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut input = program.stdin.take().unwrap();
    let log = log.to_owned();
    // It may end without reading its input.
    let writer = std::thread::spawn(move || _ = input.write_all(&log));
    let output = program.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn text(arguments: &[&str], log: &[u8]) -> String {
    let Output { status, stdout, stderr } = run(arguments, log);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn report(arguments: &[&str], log: &[u8]) -> Value {
    serde_json::from_str(&text(&[arguments, &["--json"]].concat(), log)).unwrap()
}

const POLICY: &str = "
rules:
  - id: search
    match: { methods: [GET], paths: ['/v1/{index}'] }
    tiers: [{ limit: 5, window: 1s, burst: 3 }, { limit: 40, window: 10s, algorithm: sliding-window }]
    tenants: { gold: unlimited }
  - id: all
    per: [tenant]
    tiers: [{ limit: 60, window: 10s, algorithm: fixed-window }]
";

/// Numbers that repeat.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A request that a server has answered.
struct Answered {
    time: u64,
    method: &'static str,
    target: &'static str,
    tenant: &'static str,
    status: u16,
}

/// Requests over a socket to a server that limits them, whose clock is stepped.
async fn recorded(requests: usize) -> Vec<Answered> {
    let clock = ManualClock::new();
    let policy = Policy::from_yaml(POLICY).unwrap();
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    let layer = RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key"));
    let app = Router::new().fallback(|| async { "found" }).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let mut draw = Draw(7);
    let mut answered = Vec::new();
    for _ in 0..requests {
        clock.advance(Duration::from_nanos(draw.below(60_000_001)));
        let tenant = ["acme", "initech", "gold", "globex"][draw.below(4) as usize];
        let (method, target) = [
            ("GET", "/v1/books?q=1"),
            ("GET", "/v1/films"),
            ("POST", "/v1/books"),
            ("GET", "/"),
            ("HEAD", "/v1/books"),
        ][draw.below(5) as usize];
        let request = Request::builder().method(method).uri(format!("http://{address}{target}"));
        let request = request.header("x-api-key", tenant).body(Body::empty()).unwrap();
        let status = client.request(request).await.unwrap().status().as_u16();
        answered.push(Answered { time: clock.now().as_nanos(), method, target, tenant, status });
    }
    answered
}

fn rejected(answered: &[Answered]) -> usize {
    answered.iter().filter(|answered| answered.status == StatusCode::TOO_MANY_REQUESTS).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_decides_as_the_server_did() {
    let folder = Folder::new("recorded");
    let policy = folder.file("policy.yaml", POLICY);
    let answered = recorded(1_500).await;
    let rejected = rejected(&answered);
    assert!(rejected > 100 && rejected < 1_400, "{rejected}");

    let json = answered.iter().map(|Answered { time, method, target, tenant, status }| {
        format!("{{\"time\":{time},\"method\":\"{method}\",\"path\":\"{target}\",\"key\":\"{tenant}\",\"status\":{status}}}\n")
    });
    let json = folder.file("log.json", json.collect::<String>());
    let nginx = answered.iter().map(|Answered { time, method, target, tenant, status }| {
        let (seconds, nanos) = (time / 1_000_000_000, time % 1_000_000_000);
        format!("[{seconds}.{nanos:09}] {tenant} \"{method} {target} HTTP/1.1\" {status} 12\n")
    });
    let nginx = folder.file("log", nginx.collect::<String>());
    for arguments in [
        &["--format", "json", "--tenant", "key", &json][..],
        &["--log-format", "[$msec] $http_x_api_key \"$request\" $status $bytes", "--tenant", "http_x_api_key", &nginx],
    ] {
        let report = report(&[&["--policy", &policy], arguments].concat(), b"");
        assert_eq!(report["decided_otherwise"], 0, "{report}");
        assert_eq!((&report["total"]["rejected"], &report["logged_rejections"]), (&rejected.into(), &rejected.into()));
        assert_eq!((&report["total"]["requests"], &report["lines"]["unreadable"]), (&1_500.into(), &0.into()));
    }
}

/// A line of the Combined Log Format, for each second from an hour on.
fn combined(second: usize, address: &str, request: &str) -> String {
    let (minutes, seconds) = (second / 60, second % 60);
    format!(
        "{address} - - [26/Nov/2026:13:{minutes:02}:{seconds:02} +0000] \"{request}\" 200 5 \"-\" \"agent \\\" x\"\n"
    )
}

/// Times as logs write them, and the same in the report.
#[test]
fn every_form_of_a_time_is_read() {
    let folder = Folder::new("times");
    let policy = folder.file("policy.yaml", PER_MINUTE);
    for (written, read) in [
        ("\"29/Feb/2000:23:59:59 -0730\"", "2000-03-01T07:29:59Z"),
        ("\"01/Jan/1970:00:00:00 +0000\"", "1970-01-01T00:00:00Z"),
        ("\"31/Dec/2100:12:00:00 +1400\"", "2100-12-30T22:00:00Z"),
        ("\"2026-11-26T13:00:00.25Z\"", "2026-11-26T13:00:00.250000000Z"),
        ("\"2026-11-26 13:00:00,123456789+05:30\"", "2026-11-26T07:30:00.123456789Z"),
        ("\"2026-11-26T13:00:00\"", "2026-11-26T13:00:00Z"),
        ("\"2026-11-26t13:00:00z\"", "2026-11-26T13:00:00Z"),
        ("1795698000", "2026-11-26T13:00:00Z"),
        ("1795698000.0", "2026-11-26T13:00:00Z"),
        ("1795698000.5", "2026-11-26T13:00:00.500000000Z"),
        ("\"1795698000.000000001\"", "2026-11-26T13:00:00.000000001Z"),
        ("1795698000001", "2026-11-26T13:00:00.001000000Z"),
        ("\"1795698000001.5\"", "2026-11-26T13:00:00.001500000Z"),
        ("1795698000000001", "2026-11-26T13:00:00.000001000Z"),
        ("1795698000000000001", "2026-11-26T13:00:00.000000001Z"),
    ] {
        let line = format!("{{\"time\":{written},\"method\":\"GET\",\"path\":\"/\"}}\n");
        let report = report(&["--policy", &policy, "--format", "json"], line.as_bytes());
        assert_eq!(report["from"], read, "{written}: {report}");
    }
    for status in ["429", "429.0", "\"429\""] {
        let line = format!("{{\"time\":1795698000,\"method\":\"GET\",\"path\":\"/\",\"status\":{status}}}\n");
        let report = report(&["--policy", &policy, "--format", "json"], line.as_bytes());
        assert_eq!(report["logged_rejections"], 1, "{status}: {report}");
    }
    for wrong in [
        "31/Dec/1969:23:00:00 +0000",
        "29/Fex/2000:00:00:00 +0000",
        "2026-13-01T00:00:00Z",
        "2026-11-26T24:00:00Z",
        "é6/Nov",
        "-1",
        "1e9",
        "",
        "2026-11-26Té",
    ] {
        let line = format!("{{\"time\":\"{wrong}\",\"method\":\"GET\",\"path\":\"/\"}}\n");
        assert_eq!(
            report(&["--policy", &policy, "--format", "json"], line.as_bytes())["lines"]["unreadable"],
            1,
            "{wrong}"
        );
    }
}

const PER_MINUTE: &str = "rules: [{ id: all, per: [tenant], tiers: [{ limit: 2, window: 1m }] }]";

#[test]
fn every_form_of_a_log_tells_the_same() {
    let folder = Folder::new("forms");
    let policy = folder.file("policy.yaml", PER_MINUTE);
    let one = |line: &dyn Fn(usize) -> String| (0..6).map(line).collect::<String>();
    let combined = one(&|second| combined(second, "192.0.2.7", "GET /a HTTP/1.1"));
    let common = combined.replace(" \"-\" \"agent \\\" x\"", "");
    let envoy = one(&|second| {
        format!(
            "[2026-11-26T14:00:0{second}.000+01:00] \"GET /a HTTP/2\" 200 - 0 5 1 0 \"192.0.2.7\" \"-\" \"id\" \"host\" \"-\"\n"
        )
    });
    let json = one(&|second| {
        format!(
            "{{\"ts\":\"2026-11-26T13:00:0{second}Z\",\"line\":\"GET /a HTTP/1.1\",\"status\":200,\"remote_addr\":\"192.0.2.7\",\"more\":[{{}}]}}\n"
        )
    });
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(combined.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let logs: [(&[&str], &[u8]); 5] = [
        (&[], combined.as_bytes()),
        (&["--format", "common"], common.as_bytes()),
        (&["--format", "envoy"], envoy.as_bytes()),
        (&["--format", "json", "--field", "time=ts", "--field", "request=line"], json.as_bytes()),
        (&[], &gzip),
    ];
    let reports = logs.map(|(arguments, log)| report(&[&["--policy", &policy], arguments].concat(), log));
    assert_eq!(
        (&reports[0]["from"], &reports[0]["to"]),
        (&"2026-11-26T13:00:00Z".into(), &"2026-11-26T13:00:05Z".into())
    );
    assert_eq!((&reports[0]["total"]["allowed"], &reports[0]["total"]["rejected"]), (&2.into(), &4.into()));
    for report in &reports[1..] {
        assert_eq!(*report, reports[0]);
    }
    let log = folder.file("log.gz", &gzip);
    assert_eq!(report(&["--policy", &policy, &log], b""), reports[0], "from a file");
    let twice = report(&["--policy", &policy, &log, &log], b"");
    assert_eq!(twice["total"]["rejected"], 10, "time does not go back");
}

#[test]
fn waits_take_the_time_of_the_log() {
    let folder = Folder::new("waits");
    let policy = folder.file(
        "policy.yaml",
        "rules:
  - { id: slow, match: { paths: [/slow] }, max_wait: 1s, tiers: [{ limit: 2, window: 1s, burst: 1 }] }
  - { id: all, per: [], tiers: [{ limit: 6, window: 1m }] }",
    );
    let slow = |second| combined(second, "192.0.2.7", "GET /slow HTTP/1.1");
    // Slots at 0 s, 0.5 s and 1 s; the fourth would be too late. After the third has left, one more waits.
    let log = [slow(0), slow(0), slow(0), slow(0), slow(1), slow(2)].concat();
    let report = report(&["--policy", &policy], log.as_bytes());
    let rule = &report["rules"][0];
    let numbers = ["requests", "allowed", "rejected", "delayed", "mean_wait_ms", "longest_wait_ms", "peak_per_second"];
    let numbers = numbers.map(|name| rule[name].as_u64().unwrap());
    assert_eq!(numbers, [6, 5, 1, 3, 666, 1_000, 4], "{report}");
    // A rule without `max_wait` lets nothing wait.
    let all = (0..9).map(|_| combined(0, "192.0.2.7", "GET / HTTP/1.1")).collect::<String>();
    let report = self::report(&["--policy", &policy], all.as_bytes());
    assert_eq!((&report["rules"][1]["rejected"], &report["rules"][1]["delayed"]), (&3.into(), &0.into()), "{report}");
}

/// A rule that does not let wait decides at once, whatever the others allow, and a fair rule
/// gives a tenant the slot of another one that has more waiters.
#[test]
fn waits_of_several_rules_are_those_of_the_limiter() {
    let folder = Folder::new("rules");
    let policy = folder.file(
        "policy.yaml",
        "rules:
  - { id: slow, match: { paths: [/slow] }, max_wait: 2s, tiers: [{ limit: 2, window: 1s, burst: 1 }] }
  - { id: strict, match: { paths: [/slow] }, tiers: [{ limit: 4, window: 1m }] }
  - { id: fair, match: { paths: [/fair] }, per: [], fair: true, max_wait: 1s, tiers: [{ limit: 2, window: 1s, burst: 1 }] }",
    );
    let numbers = |log: &[String], rule: usize| {
        let report = report(&["--policy", &policy], log.concat().as_bytes());
        let numbers = ["allowed", "rejected", "delayed", "longest_wait_ms"];
        numbers.map(|name| report["rules"][rule][name].as_u64().unwrap())
    };
    let slow = |second| combined(second, "192.0.2.7", "GET /slow HTTP/1.1");
    // Slots at 0, 0.5, 1 and 1.5 s; then `strict` has none left.
    let log: Vec<_> = [0, 0, 0, 0, 0, 1].map(slow).into();
    assert_eq!((numbers(&log, 0), numbers(&log, 1)), ([4, 2, 3, 1_500], [4, 2, 0, 0]));
    let fair = |tenant| combined(0, tenant, "GET /fair HTTP/1.1");
    let log: Vec<_> = ["192.0.2.7", "192.0.2.7", "192.0.2.7", "192.0.2.9"].map(fair).into();
    // The first goes at once. Of the slots at 0.5 and 1 s, the other tenant gets one.
    assert_eq!(numbers(&log, 2), [3, 1, 2, 1_000]);
}

/// Requests that the limit would admit at once.
#[test]
fn a_smooth_rule_delays_what_it_would_admit() {
    let folder = Folder::new("smooth");
    let policy = folder.file(
        "policy.yaml",
        "rules: [{ id: all, max_wait: 8s, smooth: true, tiers: [{ limit: 4, window: 8s, algorithm: sliding-window }] }]",
    );
    let log = [0, 0, 0].map(|second| combined(second, "192.0.2.7", "GET / HTTP/1.1")).concat();
    let report = report(&["--policy", &policy], log.as_bytes());
    assert_eq!((&report["total"]["rejected"], &report["total"]["delayed"]), (&0.into(), &2.into()), "{report}");
}

#[test]
fn two_policies_are_compared() {
    let folder = Folder::new("against");
    let old = folder.file("old.yaml", PER_MINUTE);
    let new = folder.file("new.yaml", "rules: [{ id: new, per: [tenant], tiers: [{ limit: 3, window: 1m, algorithm: anchored-window }], tenants: { 192.0.2.9: [{ limit: 1, window: 1m }] } }]");
    let log: String = (0..5)
        .flat_map(|second| {
            [combined(second, "192.0.2.7", "GET / HTTP/1.1"), combined(second, "192.0.2.9", "GET / HTTP/1.1")]
        })
        .collect();
    let report = report(&["--policy", &new, "--against", &old, "-"], log.as_bytes());
    let numbers = |numbers: &Value| {
        ["requests", "rejected", "newly_rejected", "newly_allowed"].map(|name| numbers[name].as_u64().unwrap())
    };
    assert_eq!(numbers(&report["total"]), [10, 6, 1, 1], "{report}");
    let top =
        |tenant| report["rules"][0]["top"].as_array().unwrap().iter().find(|top| top["tenant"] == tenant).unwrap();
    assert_eq!((numbers(top("192.0.2.7")), numbers(top("192.0.2.9"))), ([5, 2, 0, 1], [5, 4, 1, 0]));
    let lines = text(&["--policy", &new, "--against", &old, "-"], log.as_bytes());
    assert!(
        lines.contains(
            "        10         4         6         0       0ms       0ms         2         1         1  all\n"
        ),
        "{lines}"
    );
}

/// The recommended bucket, put into the policy, rejects no more tenants than was asked for.
#[test]
fn a_recommendation_holds() {
    let folder = Folder::new("recommend");
    let policy = folder.file("policy.yaml", PER_MINUTE);
    let mut draw = Draw(3);
    let mut log = String::new();
    for second in 0..250 {
        for tenant in 1..=20 {
            // Each is busier than the one before, and some seconds have a burst.
            let requests = if draw.below(40) < tenant { 1 + draw.below(4) } else { 0 };
            (0..requests).for_each(|_| log += &combined(second, &format!("192.0.2.{tenant}"), "GET / HTTP/1.1"));
        }
    }
    for (percent, most) in [(0, 0), (10, 2)] {
        let report = report(&["--policy", &policy, &format!("--recommend={percent}"), "-"], log.as_bytes());
        let recommendation = &report["rules"][0]["recommendation"];
        let curve = recommendation["curve"].as_array().unwrap();
        let bursts: Vec<u64> = curve.iter().map(|bucket| bucket["burst"].as_u64().unwrap()).collect();
        assert!(
            curve.contains(&recommendation["chosen"]) && bursts.is_sorted_by(|one, next| one >= next),
            "{recommendation}"
        );
        for bucket in [&recommendation["chosen"], &curve[3]] {
            let tier = format!("{{ limit: {}, window: 1m, burst: {} }}", bucket["limit"], bucket["burst"]);
            let policy = folder.file("new.yaml", PER_MINUTE.replace("{ limit: 2, window: 1m }", &tier));
            let report = self::report(&["--policy", &policy, "--top", "100"], log.as_bytes());
            let tenants = report["rules"][0]["top"].as_array().unwrap();
            let rejected = tenants.iter().filter(|tenant| tenant["rejected"].as_u64().unwrap() > 0).count();
            assert!(rejected <= most, "{percent}%, {tier}: {rejected}");
            // And less would not do.
            let tighter = PER_MINUTE.replace(
                "{ limit: 2, window: 1m }",
                &format!(
                    "{{ limit: {}, window: 1m, burst: {} }}",
                    bucket["limit"],
                    bucket["burst"].as_u64().unwrap() - 1
                ),
            );
            let report =
                self::report(&["--policy", &folder.file("less.yaml", tighter), "--top", "100"], log.as_bytes());
            let tenants = report["rules"][0]["top"].as_array().unwrap();
            let rejected = tenants.iter().filter(|tenant| tenant["rejected"].as_u64().unwrap() > 0).count();
            assert!(rejected > most, "{percent}%, {tier} is not the least: {rejected}");
        }
    }
}

#[test]
fn a_hostile_log_is_escaped_everywhere() {
    let folder = Folder::new("hostile");
    let policy = folder.file("policy.yaml", PER_MINUTE);
    let mut log = Vec::new();
    let colored = "\u{1b}[2J\u{7f}\u{9b}31m\u{202e}";
    for tenant in ["<script>alert(1)</script>", colored, "a'\\\"&b", "two\\x0alines", &"x".repeat(5_000)] {
        log.extend(
            format!("- {tenant} [26/Nov/2026:13:00:00 +0000] \"GET /<script> HTTP/1.1\" 200 5\n")
                .replace("- ", "")
                .into_bytes(),
        );
    }
    log.extend(b"\"\x16\x03\x01\" <script>\x1b[2J\n\n");
    log.extend(b"y".repeat(1_000_000));
    log.extend(b"\n\xff\xfe \x00 - - [26/Nov/2026:13:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n");
    log.extend(b"z [99/Nov/2026:13:00:00 +0000] \"GET / HTTP/1.1\" 200\n{\"time\":[[[[\n");
    let page = folder.0.join("page.html");
    let arguments = [
        "--policy",
        &policy,
        "--log-format",
        "$who [$time_local] \"$request\" $status",
        "--tenant",
        "who",
        "--html",
        page.to_str().unwrap(),
    ];
    let lines = text(&arguments, &log);
    let is_clean = |text: &str| !text.contains(|char: char| char.is_control() && char != '\n' || char == '\u{202e}');
    assert!(is_clean(&lines), "{lines:?}");
    assert!(
        lines.contains("  \\u{1b}[2J\\u{7f}\\u{9b}31m\\u{202e}\n")
            && lines.contains("  two\\nlines\n")
            && lines.lines().all(|line| line.chars().count() < 300),
        "{lines}"
    );
    assert!(is_clean(&text(&[&arguments[..], &["--json"]].concat(), &log)));
    let json = report(&arguments, &log);
    assert_eq!(json["lines"]["unreadable"], 5, "{json}");
    let names = json["rules"][0]["top"].to_string();
    assert!(names.contains("\u{202e}"), "{names}");
    assert!(json["lines"]["examples"].to_string().contains("is longer than 65536 bytes"), "{json}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(is_clean(&html) && html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{html}");
    assert!(!html.contains("<script") && html.contains("a&#39;&quot;&amp;b"), "{html}");

    let Output { status, stdout, stderr } = run(&[&arguments[..], &["--strict"]].concat(), &log);
    let error = String::from_utf8(stderr).unwrap();
    assert_eq!((status.code(), stdout.len()), (Some(1), 0), "{error}");
    assert!(error.starts_with("-:6: ") && is_clean(&error), "{error}");
}

#[test]
fn a_wrong_call_says_what_is_wrong() {
    let folder = Folder::new("calls");
    let policy = folder.file("policy.yaml", PER_MINUTE);
    let broken = folder.file("broken.yaml", "rules: [{ id: a, tiers: [{ limit: 5 }] }]");
    for (arguments, code, message) in [
        (&["--policy", &*broken][..], 1, "tiers[0].window: is missing"),
        (&["--policy", &policy, "--against", &broken], 1, "tiers[0].window: is missing"),
        (&["--policy", &policy, "/no/such/log"], 2, "/no/such/log: "),
        (&["--policy", &policy, "--log-format", "$a$b $time_local $request"], 2, "nothing separates `$b`"),
        (&["--policy", &policy, "--log-format", "$time_local $status"], 2, "`$request`"),
        (&["--policy", &policy, "--tenant", "http_x_api_key"], 2, "no field `$http_x_api_key`"),
        (&["--policy", &policy, "--format", "xml"], 2, "xml"),
    ] {
        let output = run(arguments, b"");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && error.contains(message), "{arguments:?}: {error}");
    }
    let empty = report(&["--policy", &policy], b"");
    assert_eq!((&empty["total"]["requests"], &empty["from"]), (&0.into(), &Value::Null));
}

/// Otherwise all callers would be taken for one.
#[test]
fn a_log_without_the_tenants_field_says_so() {
    let folder = Folder::new("no-tenant");
    let policy = folder.file("policy.yaml", PER_MINUTE);
    let line = |ip: &str| format!("{{\"time\":1,\"method\":\"GET\",\"path\":\"/a\",\"ip\":\"{ip}\"}}\n");
    let log = ["192.0.2.7", "192.0.2.8", "192.0.2.9"].map(line).concat();
    let notes = |tenant: &[&str]| {
        let arguments = [&["--policy", &policy, "--format", "json"], tenant, &["-"]].concat();
        report(&arguments, log.as_bytes())["notes"].to_string()
    };
    assert!(notes(&[]).contains("no line has `remote_addr`"), "{}", notes(&[]));
    assert_eq!(notes(&["--tenant", "ip"]), "[]");
}

#[test]
fn a_replay_says_which_rules_a_log_cannot_decide() {
    let folder = Folder::new("notes");
    let rule =
        "rules: [{ id: calls, match: { headers: { mcp-method: [tools/call] } }, tiers: [{ limit: 1, window: 1m }] }]";
    let policy = folder.file("policy.yaml", rule);
    let notes = report(&["--policy", &policy, "-"], b"")["notes"].to_string();
    assert!(notes.contains("rule `calls` is not replayed: a log does not have the headers that it is for"), "{notes}");
}
