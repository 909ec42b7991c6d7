//! Values under the prefix that this crate has not written.

use tower_ratelimit::{Algorithm, Descriptor, FailureMode, Policy, Quota, Rule, error::BackendErrorKind};

use super::{Seen, algorithms::ALGORITHMS, ask, failure_kind, limiter, patient, server::Server, shared_machine, until};

/// A rule for each algorithm and one that limits concurrency, under paths of
/// their names.
fn policy(mode: FailureMode) -> Policy {
    let quota = |algorithm: Algorithm| match algorithm {
        Algorithm::Concurrency => Quota::concurrent(20),
        _ => Quota::per_day(20).algorithm(algorithm),
    };
    names().into_iter().fold(Policy::new(), |policy, algorithm| {
        let path = format!("/{algorithm}");
        policy.rule(Rule::new(algorithm.as_str()).path(path).tier(quota(algorithm)).on_backend_failure(mode))
    })
}

fn names() -> Vec<Algorithm> {
    ALGORITHMS.into_iter().chain([Algorithm::Concurrency]).collect()
}

/// The keys of a rule.
async fn keys_of(server: &Server, rule: &str) -> Vec<String> {
    let keys = server.keys("*").await;
    keys.into_iter().filter(|key| key.contains(&format!(":{rule}:"))).collect()
}

/// Whatever the value is: a decision, or the failure mode, which is counted and
/// ends when the value is removed.
async fn cope(value: &str, write: impl AsyncFn(&Server, &str)) {
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    for mode in [FailureMode::Closed, FailureMode::Open] {
        let limiter = limiter(policy(mode), &redis);
        for algorithm in names() {
            let path = format!("/{algorithm}");
            let request = Descriptor::new(&path).tenant("acme");
            // Held, so that the concurrency limit has a key as well.
            let permit = limiter.acquire(&request, std::time::Duration::ZERO).await;
            let before = limiter.stats();
            let keys = keys_of(&server, algorithm.as_str()).await;
            assert!(!keys.is_empty(), "{algorithm}: no key");
            for key in &keys {
                write(&server, key).await;
            }
            for _ in 0..3 {
                let seen = ask(&limiter, &path, "acme").await;
                assert!(mode == FailureMode::Closed || seen != Seen::Failed, "{algorithm}, {value}");
            }
            let after = limiter.stats();
            let answered = after.allowed + after.rejected - before.allowed - before.rejected;
            let failed = after.failed_open + after.failed_closed - before.failed_open - before.failed_closed;
            // A rejection by the failure mode may be counted as both.
            assert!(answered + failed >= 3, "{algorithm}, {value}: {answered} answered, {failed} failed, of 3");
            drop(permit);
            for key in keys {
                let () = server.run("DEL", [&key]).await;
            }
            until("it to recover", async || {
                let tenant = format!("newcomer to {value}");
                let failed = limiter.stats().failed_open + limiter.stats().failed_closed;
                let seen = ask(&limiter, &path, &tenant).await;
                let stats = limiter.stats();
                (seen == Seen::Admitted && failed == stats.failed_open + stats.failed_closed).then_some(())
            })
            .await;
        }
    }
}

/// A type that no algorithm uses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_fails_its_own_rule() {
    let _machine = shared_machine().await;
    cope("a stream", async |server, key| {
        let () = server.run("DEL", [key]).await;
        let _: String = server.run("XADD", [key, "*", "a", "b"]).await;
    })
    .await;
}

/// The error says what is wrong: it does not go away on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_is_misconfigured() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = Policy::new().rule(Rule::new("r").tier(Quota::per_day(20)).on_backend_failure(FailureMode::Closed));
    let limiter = limiter(policy, &patient(server.url()).await);
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
    for key in keys_of(&server, "r").await {
        let () = server.run("DEL", [&key]).await;
        let _: String = server.run("XADD", [&key, "*", "a", "b"]).await;
    }
    assert_eq!(failure_kind(&limiter, "acme").await, Some(BackendErrorKind::Misconfigured));
    assert_eq!(ask(&limiter, "/", "another").await, Seen::Admitted, "other keys are not affected");
}

/// Replaces the value with this text, whatever its type is.
async fn overwrite(server: &Server, key: &str, text: &str) {
    let kind: String = server.run("TYPE", [key]).await;
    match kind.as_str() {
        "string" => server.run("SET", [key, text, "KEEPTTL"]).await,
        "hash" => {
            let fields: Vec<String> = server.run("HKEYS", [key]).await;
            for field in fields {
                let _: i64 = server.run("HSET", [key, &field, text]).await;
            }
        }
        "list" => {
            let _: i64 = server.run("RPUSH", [key, text]).await;
            let () = server.run("LSET", [key, "0", text]).await;
        }
        "zset" => {
            let _: i64 = server.run("ZADD", [key, "1", text]).await;
        }
        "set" => {
            let _: i64 = server.run("SADD", [key, text]).await;
        }
        "none" => {}
        other => panic!("{key} is a {other}"),
    }
}

macro_rules! values {
    ($($name:ident: $value:expr,)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let _machine = shared_machine().await;
            cope(stringify!($name), async |server, key| overwrite(server, key, $value).await).await;
        })*
    };
}

values! {
    empty: "",
    text: "garbage",
    of_another_version: "v0:1:2:3:4",
    a_negative_number: "-1",
    a_number_beyond_all: "99999999999999999999999999999999999999",
    a_fraction: "1.5e300",
    not_a_number: "nan",
    infinite: "-inf",
    bytes: "\u{1}\u{0}\u{7f}\u{80}\n",
    very_long: &"9".repeat(100_000),
}
