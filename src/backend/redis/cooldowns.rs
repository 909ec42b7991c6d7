//! Shares cooldowns between instances through the store: [`Cooldowns`]. Sharing is best
//! effort and in the background: no request waits for it.
//!
//! A cooldown is published for the instances that listen, and kept in a sorted
//! set for those that come later. Messages come over a connection that also carries
//! decisions. A message is text: a line that names the version and the database, and then for
//! each key a line `LEFT KEY`, with the milliseconds left.
//!
//! Invariant: a shared cooldown only slows down. It never ends one early. The sorted set is
//! read after each subscribing and for each new listener, so that nothing published before
//! is missed. No time of day is exchanged, so clock skew does not matter.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc, Mutex, Once, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::fast::RandomState;
use futures_util::future::select;
use percent_encoding::percent_decode_str;
use redis::{PushInfo, PushKind, Value};
use tokio::{
    sync::{Notify, broadcast},
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    plan::{RESERVED, RESERVED_IN_TAG, percent_encode},
    transport::Link,
    wire::{Call, PUBLISH_COOLDOWNS, READ_COOLDOWNS},
};
use crate::{
    backend::{CooldownListener, CooldownNotice},
    descriptor::{Tenant, TenantId},
    error::{BackendError, BackendErrorKind},
    observe::{log_cooldown_sharing, log_cooldown_subscription},
    sync::lock,
};

/// Longer cooldowns are shared as this one.
const MAX_COOLDOWN: Duration = Duration::from_secs(3_600);

/// The time in which cooldowns are collected into one message.
const BATCH_INTERVAL: Duration = Duration::from_millis(20);

const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Any lane's connection would do.
const LANE: usize = 0;

/// How often the subscription is renewed and the sorted set is read, in case that a message was
/// lost: a server that hangs, or a node that left its cluster, does not say so.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// When the sorted set is read after messages were lost because there were too many.
const LAG_INTERVAL: Duration = Duration::from_secs(1);

/// The cooldowns of this instance and of the others.
pub(super) struct Cooldowns {
    link: Arc<Link>,
    /// The sorted set of cooldowns, and the channel.
    key: String,
    outbox: Mutex<Outbox>,
    listeners: Mutex<Vec<Weak<CooldownListener>>>,
    /// Notified when a cooldown is to be published.
    pending: Arc<Notify>,
    /// Notified when a listener was added.
    added: Arc<Notify>,
    publishing_failed: AtomicBool,
    /// Each task starts when it is needed.
    publishing: Once,
    receiving: Once,
}

impl Cooldowns {
    pub(super) fn new(link: &Arc<Link>) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::clone(link),
            key: format!("{}:cooldowns", link.settings.prefix),
            outbox: Mutex::default(),
            listeners: Mutex::default(),
            pending: Arc::default(),
            added: Arc::default(),
            publishing_failed: AtomicBool::new(false),
            publishing: Once::new(),
            receiving: Once::new(),
        })
    }

    /// Publishes a cooldown soon, unless the other instances know it.
    pub(super) fn publish(self: &Arc<Self>, notice: &CooldownNotice<'_>) {
        let Some(key) = key_of(notice) else { return };
        let now = Instant::now();
        if lock(&self.outbox).put(key, now + notice.time.min(MAX_COOLDOWN), now) {
            self.pending.notify_one();
            let publish = || publish_all(Arc::downgrade(self), Arc::clone(&self.pending));
            self.publishing.call_once(|| self.link.runtime.keep(publish()));
        }
    }

    /// Notifies a limiter of cooldowns from now on.
    pub(super) fn subscribe(self: &Arc<Self>, listener: Weak<CooldownListener>) {
        lock(&self.listeners).push(listener);
        self.added.notify_one();
        self.receiving.call_once(|| self.link.runtime.keep(receive_all(Arc::downgrade(self), Arc::clone(&self.added))));
    }

    /// Publishes a batch. Returns when to look again; `None` if nothing is
    /// pending.
    async fn publish_batch(&self) -> Option<Duration> {
        let batch = lock(&self.outbox).take(MAX_KEYS, Instant::now());
        if batch.is_empty() {
            return None;
        }
        let (now, settings) = (Instant::now(), &self.link.settings);
        let left = batch.iter().map(|(key, end)| (&**key, end.saturating_duration_since(now)));
        let message = message(settings.database(), left);
        let reply = self.link.call(LANE, &Call::new(&PUBLISH_COOLDOWNS, [&*self.key], 1, [message.as_bytes()])).await;
        let error = match reply {
            Ok(error) => match redis::from_redis_value::<String>(error) {
                Ok(error) if !error.is_empty() => Some(BackendError::misconfigured(error)),
                _ => None,
            },
            // Retrying cannot fix it.
            Err(error) if matches!(error.kind(), BackendErrorKind::Misconfigured | BackendErrorKind::Unsupported) => {
                Some(error)
            }
            // Publishing it twice does no harm.
            Err(_) => {
                lock(&self.outbox).put_back(batch);
                return Some(RETRY_INTERVAL);
            }
        };
        // Each failure is logged once, until it works again.
        if self.publishing_failed.swap(error.is_some(), Ordering::AcqRel) != error.is_some() {
            log_cooldown_sharing(&settings.servers, error.as_ref());
        }
        Some(BATCH_INTERVAL)
    }

    fn has_listeners(&self) -> bool {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        !listeners.is_empty()
    }

    /// Passes on the cooldowns of these lines.
    async fn pass_on(&self, lines: &str) {
        let listeners = lock(&self.listeners).clone();
        let notify = |notice: &CooldownNotice<'_>| {
            listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(notice))
        };
        for (index, line) in lines.split('\n').enumerate() {
            let _ = read_line(line, notify);
            if index % MAX_KEYS == MAX_KEYS - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Subscribes, and then reads the sorted set. Returns what is pushed meanwhile and later.
    async fn receive_known(&self) -> Result<broadcast::Receiver<PushInfo>, BackendError> {
        let pushes = self.link.subscribe(&self.key).await?;
        let lines = self.link.call(LANE, &Call::new(&READ_COOLDOWNS, [&*self.key], 1, [&b""[..]])).await?;
        // Else the key holds something else, or may not be read.
        if let Ok(lines) = redis::from_redis_value::<Vec<u8>>(lines) {
            self.pass_on(&String::from_utf8_lossy(&lines)).await;
        }
        Ok(pushes)
    }
}

/// Publishes what is queued, for as long as `cooldowns` exist.
async fn publish_all(cooldowns: Weak<Cooldowns>, due: Arc<Notify>) {
    loop {
        due.notified().await;
        while let Some(own) = cooldowns.upgrade() {
            let Some(pause) = own.publish_batch().await else { break };
            drop(own);
            sleep_until(Instant::now() + pause).await;
        }
    }
}

/// Receives cooldowns while there are listeners. A single failure is not logged: a backend that
/// connects in the background fails until it has.
async fn receive_all(cooldowns: Weak<Cooldowns>, added: Arc<Notify>) {
    let mut failures = 0_u32;
    added.notified().await;
    while let Some(own) = cooldowns.upgrade() {
        if !own.has_listeners() {
            drop(own);
            added.notified().await;
            continue;
        }
        let (received, settings) = (own.receive_known().await, &own.link.settings);
        let (all, pause) = if received.is_ok() { (0, READ_INTERVAL) } else { (failures + 1, settings.breaker.longest) };
        if (all > 1) != (failures > 1) {
            log_cooldown_subscription(&settings.servers, received.as_ref().err());
        }
        failures = all;
        let pushes = received.unwrap_or_else(|_| own.link.pushes.subscribe());
        drop(own);
        let received = pin!(receive(&cooldowns, pushes, pause));
        // While it fails, a new listener is no reason to try again.
        match all {
            0 => _ = select(received, pin!(added.notified())).await,
            _ => received.await,
        }
    }
}

/// Passes on messages for so long. Returns earlier when one was lost: soon after there were too
/// many, and at once when connections end or others take their place.
async fn receive(cooldowns: &Weak<Cooldowns>, mut pushes: broadcast::Receiver<PushInfo>, pause: Duration) {
    let mut end = Instant::now() + pause;
    while Instant::now() < end {
        match timeout_at(end, pushes.recv()).await {
            // The channel, and the message.
            Ok(Ok(PushInfo { kind: PushKind::Message, data })) => {
                if let (Some(Value::BulkString(message)), Some(own)) = (data.get(1), cooldowns.upgrade())
                    && let Some(lines) = lines(message, own.link.settings.database())
                {
                    own.pass_on(lines).await;
                }
            }
            Ok(Ok(PushInfo { kind, .. })) if kind != PushKind::Disconnection => {}
            Ok(Err(broadcast::error::RecvError::Lagged(_))) => end = end.min(Instant::now() + LAG_INTERVAL),
            _ => return,
        }
    }
}

/// The most keys. Those that were published are forgotten first.
const MAX_KNOWN: usize = 4_096;

/// A cooldown that is longer by at most this is not published again.
const TOLERANCE: Duration = Duration::from_millis(1);

/// When the cooldown of each key ends, and whether it was published.
#[derive(Debug, Default)]
struct Outbox(HashMap<Arc<str>, (Instant, bool), RandomState>);

impl Outbox {
    /// Whether the cooldown is to be published: not if one as long is known, and not
    /// if too many are pending.
    fn put(&mut self, key: String, end: Instant, now: Instant) -> bool {
        let key: Arc<str> = key.into();
        let known = self.0.get(&key).map(|(end, _)| *end);
        if known.is_some_and(|known| end <= known + TOLERANCE) {
            return false;
        }
        if known.is_none() && self.0.len() >= MAX_KNOWN {
            self.0.retain(|_, (end, is_published)| *end > now && !*is_published);
        }
        let has_space = known.is_some() || self.0.len() < MAX_KNOWN;
        if has_space {
            self.0.insert(key, (end, false));
        }
        has_space
    }

    /// Takes up to `most` of those that are pending, and forgets all that have ended.
    fn take(&mut self, most: usize, now: Instant) -> Vec<(Arc<str>, Instant)> {
        self.0.retain(|_, (end, _)| *end > now);
        let pending = self.0.iter_mut().filter(|(_, (_, is_published))| !is_published).take(most);
        let take = |(key, (end, is_published)): (&Arc<str>, &mut (Instant, bool))| {
            *is_published = true;
            (Arc::clone(key), *end)
        };
        pending.map(take).collect()
    }

    /// What was taken could not be published.
    fn put_back(&mut self, batch: Vec<(Arc<str>, Instant)>) {
        for (key, _) in batch {
            if let Some((_, is_published)) = self.0.get_mut(&key) {
                *is_published = false;
            }
        }
    }
}

/// Keys with longer names are not shared.
const MAX_KEY: usize = 1_024;

/// The most keys in one message.
const MAX_KEYS: usize = 64;

/// A longer message is not one of this crate.
const MAX_MESSAGE: usize = 128 + MAX_KEYS * (MAX_KEY + 32);

/// `RULE:{TENANT}:ENDPOINT:METHOD`, encoded as in the names of counters, but
/// never hashed. Without spaces and line breaks. `None` if it is too long.
fn key_of(notice: &CooldownNotice<'_>) -> Option<String> {
    let length = notice.rule.len() + notice.endpoint.len() + notice.method.len();
    let tenant = if let Some(TenantId::Name(name)) = notice.tenant { name.len() } else { 0 };
    if length + tenant > MAX_KEY {
        return None;
    }
    let tenant = match notice.tenant {
        Some(TenantId::Name("")) => "%".into(),
        Some(TenantId::Name(name)) => percent_encode(name, RESERVED_IN_TAG),
        Some(TenantId::Address(address)) => format!("@{address}"),
        None if notice.per_tenant => "!".into(),
        None => "*".into(),
    };
    let (rule, endpoint) = (percent_encode(notice.rule, RESERVED_IN_TAG), percent_encode(notice.endpoint, RESERVED));
    let text = format!("{rule}:{{{tenant}}}:{endpoint}:{}", percent_encode(notice.method, RESERVED));
    (text.len() <= MAX_KEY).then_some(text)
}

fn message<'k>(database: i64, keys: impl IntoIterator<Item = (&'k str, Duration)>) -> String {
    let mut text = head(database);
    for (key, left) in keys {
        // Rounded up, so that no instance resumes too early.
        let millis = left.as_nanos().div_ceil(1_000_000);
        text.push_str(&format!("\n{millis} {key}"));
    }
    text
}

fn head(database: i64) -> String {
    format!("1 {database}")
}

/// The lines of a message about this database.
fn lines(message: &[u8], database: i64) -> Option<&str> {
    if message.len() > MAX_MESSAGE {
        return None;
    }
    let lines = std::str::from_utf8(message).ok()?.strip_prefix(&head(database))?;
    (lines.is_empty() || lines.starts_with('\n')).then_some(lines)
}

/// Passes on the cooldown in a line. One that cannot be read is left out.
fn read_line(line: &str, pass_on: impl FnOnce(&CooldownNotice<'_>)) -> Option<()> {
    let (left, key) = line.split_once(' ')?;
    if key.len() > MAX_KEY || !left.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Only an address contains a colon.
    let (rule, rest) = key.split_once(":{")?;
    let (tenant, rest) = rest.split_once("}:")?;
    let (endpoint, method) = rest.split_once(':')?;
    let per_tenant = tenant != "*";
    let tenant = match tenant.strip_prefix('@') {
        Some(address) => Some(Tenant::address(address.parse().ok()?)),
        None => match tenant {
            "*" | "!" => None,
            "%" => Some(Tenant::new("")),
            name => Some(Tenant::new(decode(name)?)),
        },
    };
    let (rule, endpoint, method) = (decode(rule)?, decode(endpoint)?, decode(method)?);
    pass_on(&CooldownNotice {
        rule: &rule,
        per_tenant,
        tenant: tenant.as_ref().map(Tenant::id),
        endpoint: &endpoint,
        method: &method,
        time: Duration::from_millis(left.parse().ok()?),
    });
    Some(())
}

fn decode(encoded: &str) -> Option<String> {
    percent_decode_str(encoded).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests;
