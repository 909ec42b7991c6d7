//! Hears what other instances tell: over a connection of its own, which is
//! made anew for as long as anybody listens.

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

use super::Sharing;
use crate::{
    backend::redis::{connect, failure::Failure},
    time::nanos,
};

/// How often it is seen whether anybody listens still.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// After so many looks the server is asked whether it is there: one that hangs
/// does not say so.
const LOOKS_A_PING: u32 = 5;

/// After so many what is held back is read anew: a node that left its cluster,
/// or is cut off from it, has nothing to say and does not know.
const LOOKS_A_READ: u32 = 10;

/// Listens for as long as somebody wants to know.
pub(super) async fn listen(sharing: Weak<Sharing>) {
    let mut failures = 0;
    loop {
        let Some(strong) = sharing.upgrade() else { return };
        match Subscription::open(&strong).await {
            Ok(subscription) => {
                failures = 0;
                strong.hears();
                drop(strong);
                if subscription.last(&sharing).await == End::NobodyListens {
                    return;
                }
            }
            Err(failure) => {
                strong.does_not_hear(&failure.error);
                if !strong.is_listened_to() {
                    return;
                }
            }
        }
        let Some(delay) = sharing.upgrade().map(|strong| strong.delay(failures)) else { return };
        failures = failures.saturating_add(1);
        sleep_until(Instant::now() + delay).await;
    }
}

struct Subscription {
    connection: MultiplexedConnection,
    gone: Arc<AtomicBool>,
    within: Duration,
}

/// Why it is over.
#[derive(PartialEq, Eq)]
enum End {
    Gone,
    NobodyListens,
}

impl Subscription {
    async fn open(sharing: &Arc<Sharing>) -> Result<Self, Failure> {
        let within = sharing.settings.connect_timeout;
        let gone = Arc::<AtomicBool>::default();
        // The connection's task owns this, and is not to own what owns it.
        let (hearing, news, lost) = (Arc::downgrade(sharing), Arc::clone(&sharing.news), Arc::clone(&gone));
        let push = move |push: PushInfo| {
            match push.kind {
                // The channel, and what was said.
                PushKind::Message => {
                    if let (Some(sharing), Some(Value::BulkString(message))) = (hearing.upgrade(), push.data.get(1)) {
                        sharing.hear(message);
                    }
                }
                PushKind::Disconnection => {
                    lost.store(true, Ordering::Release);
                    news.notify_one();
                }
                _ => {}
            }
            Ok::<_, SendError>(())
        };
        let mut connection = connect::listening(&sharing.settings, sharing.link.connections(), push).await?;
        let subscribed = timeout(within, connection.subscribe(&sharing.key)).await;
        subscribed.map_err(|_| late(within))?.map_err(|error| Failure::of(&error))?;
        // What was told before is read, once what is told from now on is heard.
        sharing.unread.store(true, Ordering::Release);
        sharing.news.notify_one();
        Ok(Self { connection, gone, within })
    }

    async fn last(mut self, sharing: &Weak<Sharing>) -> End {
        let Some(news) = sharing.upgrade().map(|strong| Arc::clone(&strong.news)) else { return End::NobodyListens };
        let mut looks = 0_u32;
        loop {
            let quiet = timeout(LOOK_EVERY, news.notified()).await.is_err();
            let Some(strong) = sharing.upgrade().filter(|strong| strong.is_listened_to()) else {
                return End::NobodyListens;
            };
            if self.gone.load(Ordering::Acquire) {
                return End::Gone;
            }
            looks = looks.wrapping_add(u32::from(quiet));
            if quiet && looks.is_multiple_of(LOOKS_A_READ) {
                strong.unread.store(true, Ordering::Release);
            }
            strong.read().await;
            drop(strong);
            if quiet && looks.is_multiple_of(LOOKS_A_PING) {
                let asked = redis::cmd("PING");
                if !matches!(timeout(self.within, asked.query_async::<Value>(&mut self.connection)).await, Ok(Ok(_))) {
                    return End::Gone;
                }
            }
        }
    }
}

fn late(within: Duration) -> Failure {
    Failure::timeout(format!("not subscribed within {within:?}"))
}

impl Sharing {
    /// How long to wait before the next try, at random, so that a fleet does
    /// not come back in one instant: the breaker's delays.
    fn delay(&self, failures: u32) -> Duration {
        let breaker = self.settings.breaker;
        let longest = breaker.shortest.saturating_mul(1 << failures.min(16)).min(breaker.longest);
        let half = longest / 2;
        let random = u128::from(RandomState::new().hash_one(failures));
        #[allow(clippy::cast_possible_truncation, reason = "less than the half")]
        let more = ((random * u128::from(nanos(half))) >> 64) as u64;
        half + Duration::from_nanos(more)
    }
}
