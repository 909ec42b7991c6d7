//! Shares from the addresses of a DNS name.
//!
//! It decides nothing: it sends a [`Share`] whenever the addresses change. The
//! invariant: a failed or contradictory answer leaves the last share in force.

use std::{fmt, future::Future, io, net::IpAddr, pin::pin, time::Duration};

use futures_util::future::{BoxFuture, select};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

use super::share::Share;
use crate::observe;

/// Finds all current addresses of a name.
type Resolver = dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync;

/// Shares by the addresses of a name, such as a headless service of
/// Kubernetes. The number of addresses is the count, and the position of our
/// own in their order is the index.
///
/// The receiver of [`watch`](Self::watch) starts with [`Share::none`], so an
/// instance that joins spends nothing that others may have spent. If the name
/// cannot be resolved, or our own address is missing, the last share stays in
/// force. The reason is logged once, as an event of `tracing` (with that
/// feature). Duplicate addresses count once, and are logged as well.
///
/// Instances may disagree on the count until all of them have resolved the name
/// again: for up to the interval and the time for which answers are cached.
///
/// ```
/// use std::net::IpAddr;
/// use tower_ratelimit::backend::{Share, Split, split::Dns};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let own = IpAddr::from([10, 0, 0, 2]);
/// let fixed = move |_name| async move { Ok(vec![own, IpAddr::from([10, 0, 0, 1])]) };
/// let (mut shares, refresh) = Dns::new("web.shop.svc", own, fixed).watch();
/// tokio::spawn(refresh);
/// let backend = Split::watch(shares.clone());
/// shares.changed().await.unwrap();
/// assert_eq!(backend.share(), Share::new(1, 2).unwrap());
/// # }
/// ```
#[must_use]
pub struct Dns {
    name: String,
    own: IpAddr,
    interval: Duration,
    resolver: Box<Resolver>,
}

impl Dns {
    /// The share of the instance whose address is `own`. `resolve` finds all current
    /// addresses of the name.
    pub fn new<F>(name: impl Into<String>, own: IpAddr, resolve: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let resolver = Box::new(move |name| -> BoxFuture<'static, _> { Box::pin(resolve(name)) });
        Self { name: name.into(), own, interval: Duration::from_secs(5), resolver }
    }

    /// Resolves with the system's resolver, on a thread of Tokio's.
    pub fn system(name: impl Into<String>, own: IpAddr) -> Self {
        Self::new(name, own, async |name| {
            Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
        })
    }

    /// How often the name is resolved, at least a millisecond. Default: 5
    /// seconds. An answer that takes longer is abandoned.
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = interval.max(Duration::from_millis(1));
        self
    }

    /// The shares, and the future that keeps them up to date, which has to be
    /// spawned.
    ///
    /// The future ends when all receivers are dropped; a thread that has used a
    /// backend may keep one until it ends. It needs Tokio's timer.
    pub fn watch(self) -> (watch::Receiver<Share>, impl Future<Output = ()> + Send + 'static) {
        let (sender, receiver) = watch::channel(Share::none());
        (receiver, self.refresh(sender))
    }

    async fn refresh(self, sender: watch::Sender<Share>) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut logged = None;
        let refresh = pin!(async {
            loop {
                ticks.tick().await;
                let problem = self.look_up(&sender).await.err();
                if let Some(problem) = problem.as_ref().filter(|problem| logged.as_ref() != Some(*problem)) {
                    observe::log_share_source(&self.name, problem);
                }
                logged = problem;
            }
        });
        select(pin!(sender.closed()), refresh).await;
    }

    /// Sends the share if it has changed; returns what is wrong, if anything.
    async fn look_up(&self, sender: &watch::Sender<Share>) -> Result<(), String> {
        let kept = |error: &dyn fmt::Display| format!("{error}; the last share stays in force");
        let mut addresses = match timeout(self.interval, (self.resolver)(self.name.clone())).await {
            Ok(found) => found.map_err(|error| kept(&error))?,
            Err(_) => return Err(kept(&"the resolver did not answer in time")),
        };
        let share = Share::among(self.own, addresses.iter().copied()).map_err(|error| kept(&error))?;
        sender.send_if_modified(|current| {
            let changed = *current != share;
            *current = share;
            changed
        });
        let all = addresses.len();
        addresses.sort_unstable();
        addresses.dedup();
        match all - addresses.len() {
            0 => Ok(()),
            duplicates => Err(format!("{duplicates} of {all} addresses are duplicates, which count once")),
        }
    }
}

impl fmt::Debug for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, own, interval, .. } = self;
        f.debug_struct("Dns").field("name", name).field("own", own).field("interval", interval).finish_non_exhaustive()
    }
}
