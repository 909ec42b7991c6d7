//! A key of a real Redis that is killed, restarted, frozen and filled with garbage.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::policy_source::RedisSource;

use super::{GARBAGE, Watched, server::Server, yaml};

const KEY: &str = "limits:policy";

/// Polls too seldom for a test to see it.
fn events_only(server: &Server) -> RedisSource {
    RedisSource::new(&server.url(), KEY).unwrap().poll_interval(Duration::from_secs(600))
}

async fn set(server: &Server, text: &str) {
    server.run::<(), _>("SET", [KEY, text]).await;
}

#[tokio::test]
async fn keyspace_notifications_report_changes() {
    let server = Server::options().set("notify-keyspace-events", ["K$g"]).start().await;
    let mut watched = Watched::new(events_only(&server));
    watched.stays_missing().await;
    set(&server, &yaml(10)).await;
    watched.follows_soon(10).await;
    for limit in [20, 30] {
        set(&server, &yaml(limit)).await;
        watched.follows_soon(limit).await;
    }
    server.run::<(), _>("DEL", [KEY]).await;
    watched.keeps(30, "missing").await;
    set(&server, &yaml(40)).await;
    watched.follows_soon(40).await;
    set(&server, "garbage").await;
    watched.keeps(40, "expected a map").await;
    server.run::<(), _>("RENAME", [KEY, "other"]).await;
    watched.keeps(40, "missing").await;
    set(&server, &yaml(50)).await;
    watched.follows_soon(50).await;
}

impl Watched {
    async fn stays_missing(&mut self) {
        let missing = |error: &str| error.contains("the key is missing");
        self.wait_for("a missing key", |status| status.error.as_deref().is_some_and(missing)).await;
    }
}

#[tokio::test]
async fn a_message_on_a_channel_reports_changes() {
    let server = Server::start().await;
    set(&server, &yaml(10)).await;
    let mut watched = Watched::new(events_only(&server).channel("limits:changed"));
    watched.follows_soon(10).await;
    set(&server, &yaml(20)).await;
    server.run::<(), _>("PUBLISH", ["limits:changed", "whatever"]).await;
    watched.follows_soon(20).await;
}

#[tokio::test]
async fn without_notifications_polling_sees_changes() {
    let server = Server::start().await;
    set(&server, &yaml(10)).await;
    let mut watched =
        Watched::new(RedisSource::new(&server.url(), KEY).unwrap().poll_interval(Duration::from_millis(100)));
    watched.follows_soon(10).await;
    set(&server, &yaml(20)).await;
    watched.follows_soon(20).await;
    // This user may not subscribe, so it gets no notifications.
    server.run::<(), _>("ACL", ["SETUSER", "reader", "on", ">s3cret", "+@all", "~*", "resetchannels"]).await;
    let url = server.url().replace("://", "://reader:s3cret@");
    let source = RedisSource::new(&url, KEY).unwrap().poll_interval(Duration::from_millis(100));
    assert!(!format!("{source:?}").contains("s3cret"), "{source:?}");
    let mut watched = Watched::new(source);
    watched.follows_soon(20).await;
    set(&server, &yaml(30)).await;
    watched.follows_soon(30).await;
}

#[tokio::test]
async fn a_server_without_resp3_is_polled() {
    let server = Server::options().set("rename-command", ["HELLO", ""]).start().await;
    set(&server, &yaml(10)).await;
    let mut watched =
        Watched::new(RedisSource::new(&server.url(), KEY).unwrap().poll_interval(Duration::from_millis(100)));
    watched.follows_soon(10).await;
    set(&server, &yaml(20)).await;
    watched.follows_soon(20).await;
}

#[tokio::test]
async fn a_server_that_is_killed_and_restarted_is_followed_at_once() {
    let mut server = Server::options().set("notify-keyspace-events", ["K$g"]).start().await;
    set(&server, &yaml(10)).await;
    let mut watched = Watched::new(events_only(&server));
    watched.follows_soon(10).await;
    for limit in [20, 30] {
        server.kill();
        let old = limit - 10;
        watched.keeps(old, "refused").await;
        // It restarts empty.
        server.restart().await;
        watched.keeps(old, "missing").await;
        set(&server, &yaml(limit)).await;
        watched.follows_soon(limit).await;
        // Notifications arrive as before.
        set(&server, &yaml(limit + 5)).await;
        watched.follows_soon(limit + 5).await;
        set(&server, &yaml(limit)).await;
        watched.follows_soon(limit).await;
    }
}

#[tokio::test]
async fn a_server_that_freezes_and_recovers_is_followed_at_once() {
    let mut server = Server::start().await;
    set(&server, &yaml(10)).await;
    let mut watched =
        Watched::new(RedisSource::new(&server.url(), KEY).unwrap().poll_interval(Duration::from_millis(100)));
    watched.follows_soon(10).await;
    server.freeze();
    watched.keeps(10, "no answer").await;
    server.thaw();
    set(&server, &yaml(20)).await;
    // The source may just have begun to connect, and waits for that.
    let start = Instant::now();
    watched.follows(20).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn garbage_leaves_the_last_good_policy_in_force() {
    let server = Server::options().set("notify-keyspace-events", ["KA"]).start().await;
    set(&server, &yaml(10)).await;
    let mut watched = Watched::new(events_only(&server));
    watched.follows_soon(10).await;
    for (nth, garbage) in (1..).zip(GARBAGE.into_iter().filter(|garbage| !garbage.is_empty())) {
        set(&server, garbage).await;
        watched.rejects(nth, 10).await;
    }
    // 100 MB, of which 1 MiB is fetched.
    server.run::<(), _>("SETRANGE", [KEY, "100000000", "x"]).await;
    watched.keeps(10, "has more than 1048576 bytes").await;
    server.run::<(), _>("SET", [KEY, ""]).await;
    watched.keeps(10, "missing or empty").await;
    server.run::<(), _>("DEL", [KEY]).await;
    server.run::<(), _>("LPUSH", [KEY, &yaml(99)]).await;
    watched.keeps(10, "WRONGTYPE").await;
    set(&server, &yaml(20)).await;
    watched.follows_soon(20).await;
}

#[test]
fn an_invalid_url_is_rejected_and_not_repeated() {
    for url in ["", "http://host", "redis://:s3cret@host:port", "redis://host/not-a-number"] {
        assert_eq!(
            RedisSource::new(url, KEY).unwrap_err().to_string(),
            "url: must be the URL of a Redis server",
            "{url}"
        );
    }
}
