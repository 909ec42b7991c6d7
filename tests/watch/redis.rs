//! A key of a real RedisSource, killed, restarted, frozen, and full of garbage.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::policy_source::RedisSource;

use super::{GARBAGE, Watched, server::Server, yaml};

const KEY: &str = "limits:policy";

/// Polls too seldom for a test to see it.
fn told_only(server: &Server) -> RedisSource {
    RedisSource::new(&server.url(), KEY).unwrap().every(Duration::from_secs(600))
}

async fn set(server: &Server, text: &str) {
    server.run::<(), _>("SET", [KEY, text]).await;
}

#[tokio::test]
async fn keyspace_notifications_tell_of_changes() {
    let server = Server::options().set("notify-keyspace-events", ["K$g"]).start().await;
    let mut watched = Watched::new(told_only(&server));
    watched.stays_missing().await;
    set(&server, &yaml(10)).await;
    watched.soon_follows(10).await;
    for limit in [20, 30] {
        set(&server, &yaml(limit)).await;
        watched.soon_follows(limit).await;
    }
    server.run::<(), _>("DEL", [KEY]).await;
    watched.stays_at(30, "missing").await;
    set(&server, &yaml(40)).await;
    watched.soon_follows(40).await;
    set(&server, "garbage").await;
    watched.stays_at(40, "expected a map").await;
    server.run::<(), _>("RENAME", [KEY, "other"]).await;
    watched.stays_at(40, "missing").await;
    set(&server, &yaml(50)).await;
    watched.soon_follows(50).await;
}

impl Watched {
    async fn stays_missing(&mut self) {
        let missing = |trouble: &str| trouble.contains("the key is missing");
        self.wait_for("a missing key", |status| status.trouble.as_deref().is_some_and(missing)).await;
    }
}

#[tokio::test]
async fn a_message_on_a_channel_tells_of_changes() {
    let server = Server::start().await;
    set(&server, &yaml(10)).await;
    let mut watched = Watched::new(told_only(&server).channel("limits:changed"));
    watched.soon_follows(10).await;
    set(&server, &yaml(20)).await;
    server.run::<(), _>("PUBLISH", ["limits:changed", "whatever"]).await;
    watched.soon_follows(20).await;
}

#[tokio::test]
async fn who_is_told_nothing_looks() {
    let server = Server::start().await;
    set(&server, &yaml(10)).await;
    let mut watched = Watched::new(RedisSource::new(&server.url(), KEY).unwrap().every(Duration::from_millis(100)));
    watched.soon_follows(10).await;
    set(&server, &yaml(20)).await;
    watched.soon_follows(20).await;
    // Messages are not let through to this user, and nothing is told.
    server.run::<(), _>("ACL", ["SETUSER", "reader", "on", ">s3cret", "+@all", "~*", "resetchannels"]).await;
    let url = server.url().replace("://", "://reader:s3cret@");
    let source = RedisSource::new(&url, KEY).unwrap().every(Duration::from_millis(100));
    assert!(!format!("{source:?}").contains("s3cret"), "{source:?}");
    let mut watched = Watched::new(source);
    watched.soon_follows(20).await;
    set(&server, &yaml(30)).await;
    watched.soon_follows(30).await;
}

#[tokio::test]
async fn a_server_without_the_new_protocol_is_looked_at() {
    let server = Server::options().set("rename-command", ["HELLO", ""]).start().await;
    set(&server, &yaml(10)).await;
    let mut watched = Watched::new(RedisSource::new(&server.url(), KEY).unwrap().every(Duration::from_millis(100)));
    watched.soon_follows(10).await;
    set(&server, &yaml(20)).await;
    watched.soon_follows(20).await;
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_is_followed_at_once() {
    let mut server = Server::options().set("notify-keyspace-events", ["K$g"]).start().await;
    set(&server, &yaml(10)).await;
    let mut watched = Watched::new(told_only(&server));
    watched.soon_follows(10).await;
    for limit in [20, 30] {
        server.kill();
        let old = limit - 10;
        watched.stays_at(old, "refused").await;
        // It comes back with nothing in its memory.
        server.restart().await;
        watched.stays_at(old, "missing").await;
        set(&server, &yaml(limit)).await;
        watched.soon_follows(limit).await;
        // And tells of changes as before.
        set(&server, &yaml(limit + 5)).await;
        watched.soon_follows(limit + 5).await;
        set(&server, &yaml(limit)).await;
        watched.soon_follows(limit).await;
    }
}

#[tokio::test]
async fn a_server_that_is_frozen_and_thaws_is_followed_at_once() {
    let mut server = Server::start().await;
    set(&server, &yaml(10)).await;
    let mut watched = Watched::new(RedisSource::new(&server.url(), KEY).unwrap().every(Duration::from_millis(100)));
    watched.soon_follows(10).await;
    server.freeze();
    watched.stays_at(10, "no answer").await;
    server.thaw();
    set(&server, &yaml(20)).await;
    // Whoever was frozen out may just have begun to connect: that it waits for.
    let start = Instant::now();
    watched.follows(20).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn what_is_no_policy_leaves_the_last_good_one_in_force() {
    let server = Server::options().set("notify-keyspace-events", ["KA"]).start().await;
    set(&server, &yaml(10)).await;
    let mut watched = Watched::new(told_only(&server));
    watched.soon_follows(10).await;
    for (nth, garbage) in (1..).zip(GARBAGE.into_iter().filter(|garbage| !garbage.is_empty())) {
        set(&server, garbage).await;
        watched.rejects(nth, 10).await;
    }
    // A hundred megabytes, of which a mebibyte is fetched.
    server.run::<(), _>("SETRANGE", [KEY, "100000000", "x"]).await;
    watched.stays_at(10, "has more than 1048576 bytes").await;
    server.run::<(), _>("SET", [KEY, ""]).await;
    watched.stays_at(10, "missing or empty").await;
    server.run::<(), _>("DEL", [KEY]).await;
    server.run::<(), _>("LPUSH", [KEY, &yaml(99)]).await;
    watched.stays_at(10, "WRONGTYPE").await;
    set(&server, &yaml(20)).await;
    watched.soon_follows(20).await;
}

#[test]
fn what_is_no_url_is_rejected_and_not_repeated() {
    for url in ["", "http://host", "redis://:s3cret@host:port", "redis://host/not-a-number"] {
        assert_eq!(RedisSource::new(url, KEY).unwrap_err().to_string(), "url: is no URL of a Redis server", "{url}");
    }
}
