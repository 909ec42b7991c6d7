//! The connection that receives cooldowns, reopened for as long as there are
//! listeners. It does not read messages: see `inbox`.
//!
//! Invariant: the sorted set is read after each subscribing, so that nothing
//! published in between is missed.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{
    PushInfo, PushKind, Value,
    aio::{MultiplexedConnection, SendError},
};
use tokio::time::{Instant, sleep_until, timeout};

use super::inbox::Inbox;
use crate::{
    backend::redis::transport::{breaker::BreakerSettings, connect::open_subscriber, failure::Failure},
    time::nanos,
};

/// How often the subscription looks for listeners.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Every so many looks without a message it pings the server, which does not
/// say when it hangs.
const LOOKS_PER_PING: u32 = 5;

/// Every so many it reads the sorted set: a node that left its cluster has no
/// messages, and does not say so.
const LOOKS_PER_READ: u32 = 10;

/// Receives cooldowns for as long as there are listeners.
pub(super) async fn run(inbox: Weak<Inbox>) {
    let mut failures = 0;
    loop {
        let Some(strong) = inbox.upgrade() else { return };
        match Subscription::open(&strong).await {
            Ok(subscription) => {
                failures = 0;
                strong.report(None);
                drop(strong);
                if subscription.run(&inbox).await == End::NoListeners {
                    return;
                }
            }
            Err(failure) => {
                strong.report(Some(&failure.error));
                if !strong.has_listeners() {
                    return;
                }
            }
        }
        let Some(delay) = inbox.upgrade().map(|inbox| delay(inbox.link.settings().breaker, failures)) else { return };
        failures = failures.saturating_add(1);
        sleep_until(Instant::now() + delay).await;
    }
}

/// An open connection that has subscribed.
struct Subscription {
    connection: MultiplexedConnection,
    is_lost: Arc<AtomicBool>,
    timeout: Duration,
}

/// Why a subscription has ended.
#[derive(PartialEq, Eq)]
enum End {
    ConnectionLost,
    NoListeners,
}

impl Subscription {
    async fn open(inbox: &Arc<Inbox>) -> Result<Self, Failure> {
        let settings = inbox.link.settings();
        let limit = settings.connect_timeout;
        let is_lost = Arc::<AtomicBool>::default();
        // The connection's task owns the closure, so it must not own the inbox.
        let (receiver, wake, lost) = (Arc::downgrade(inbox), Arc::clone(&inbox.wake), Arc::clone(&is_lost));
        let push = move |push: PushInfo| {
            match push.kind {
                // The channel, and the message.
                PushKind::Message => {
                    if let (Some(inbox), Some(Value::BulkString(message))) = (receiver.upgrade(), push.data.get(1)) {
                        inbox.receive(message);
                    }
                }
                PushKind::Disconnection => {
                    lost.store(true, Ordering::Release);
                    wake.notify_one();
                }
                _ => {}
            }
            Ok::<_, SendError>(())
        };
        let mut connection = open_subscriber(settings, inbox.link.connections(), push).await?;
        let subscribed = timeout(limit, connection.subscribe(&*inbox.key)).await;
        let late = |_| Failure::timeout(format!("not subscribed within {limit:?}"));
        subscribed.map_err(late)?.map_err(|error| Failure::of(&error))?;
        inbox.request_read();
        Ok(Self { connection, is_lost, timeout: limit })
    }

    async fn run(mut self, inbox: &Weak<Inbox>) -> End {
        let Some(wake) = inbox.upgrade().map(|inbox| Arc::clone(&inbox.wake)) else { return End::NoListeners };
        let mut looks = 0_u32;
        loop {
            let is_quiet = timeout(LOOK_INTERVAL, wake.notified()).await.is_err();
            let Some(strong) = inbox.upgrade().filter(|inbox| inbox.has_listeners()) else { return End::NoListeners };
            if self.is_lost.load(Ordering::Acquire) {
                return End::ConnectionLost;
            }
            looks = looks.wrapping_add(u32::from(is_quiet));
            if is_quiet && looks.is_multiple_of(LOOKS_PER_READ) {
                strong.mark_unread();
            }
            strong.read().await;
            drop(strong);
            if is_quiet && looks.is_multiple_of(LOOKS_PER_PING) {
                let ping = redis::cmd("PING");
                if !matches!(timeout(self.timeout, ping.query_async::<Value>(&mut self.connection)).await, Ok(Ok(_))) {
                    return End::ConnectionLost;
                }
            }
        }
    }
}

/// The time before the next try: as between the breaker's probes, and at random
/// so that a fleet does not reconnect at once.
fn delay(breaker: BreakerSettings, failures: u32) -> Duration {
    let longest = breaker.shortest.saturating_mul(1 << failures.min(16)).min(breaker.longest);
    let half = longest / 2;
    let random = u128::from(RandomState::new().hash_one(failures));
    #[allow(clippy::cast_possible_truncation, reason = "less than the half")]
    let more = ((random * u128::from(nanos(half))) >> 64) as u64;
    half + Duration::from_nanos(more)
}
