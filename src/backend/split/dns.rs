//! Shares by the addresses that a name has.

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

use super::Share;
use crate::observe;

/// A resolver's answer, on its way.
pub type Addresses<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Finds the addresses of a name.
pub trait Resolve: Send + Sync + 'static {
    /// All addresses that the name has at present.
    fn resolve<'a>(&'a self, name: &'a str) -> Addresses<'a>;
}

/// Shares by the addresses of a name, such as a headless service of
/// Kubernetes: counted, sorted, and our own found among them.
///
/// What [`watch`](Self::watch) gives starts with no share at all, so that an
/// instance that joins spends nothing that others have spent. A name that
/// cannot be resolved, or whose addresses do not hold our own, leaves the last
/// good share in force; why is told once, as an event of `tracing` where that
/// feature is on. Addresses that are there twice are counted once, and said
/// likewise.
///
/// While an answer is on its way to all instances (the interval, and as long
/// as answers are cached in between), they may disagree on the count.
///
/// ```
/// use std::net::IpAddr;
/// use tower_ratelimit::backend::{Share, Split, split::{Addresses, Dns, Resolve}};
///
/// struct Fixed;
///
/// impl Resolve for Fixed {
///     fn resolve<'a>(&'a self, _: &'a str) -> Addresses<'a> {
///         Box::pin(async { Ok(vec![IpAddr::from([10, 0, 0, 2]), IpAddr::from([10, 0, 0, 1])]) })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let (mut shares, refresh) = Dns::new("web.shop.svc", IpAddr::from([10, 0, 0, 2]), Fixed).watch();
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
    every: Duration,
    resolver: Arc<dyn Resolve>,
}

impl Dns {
    /// The share of the instance whose address is `own`.
    pub fn new(name: impl Into<String>, own: IpAddr, resolver: impl Resolve) -> Self {
        Self { name: name.into(), own, every: Duration::from_secs(5), resolver: Arc::new(resolver) }
    }

    /// How often the name is resolved: every five seconds, unless set. At
    /// least a millisecond. An answer that takes longer is given up.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(Duration::from_millis(1));
        self
    }

    /// The shares, and what keeps them up to date: to be spawned. It ends when
    /// all receivers are gone; a thread that has used a backend may keep one
    /// for as long as it lives. It needs Tokio's timer.
    pub fn watch(self) -> (watch::Receiver<Share>, impl Future<Output = ()> + Send + 'static) {
        let (sender, receiver) = watch::channel(Share::none());
        (receiver, self.refresh(sender))
    }

    async fn refresh(self, sender: watch::Sender<Share>) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = None;
        let mut refresh = pin!(async {
            loop {
                ticks.tick().await;
                let trouble = self.look_up(&sender).await.err();
                if let Some(trouble) = trouble.as_ref().filter(|trouble| said.as_ref() != Some(*trouble)) {
                    observe::share_source(&self.name, trouble);
                }
                said = trouble;
            }
        });
        let mut closed = pin!(sender.closed());
        poll_fn(|context| match closed.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => refresh.as_mut().poll(context),
        })
        .await;
    }

    /// Sends the share, where it is another; says what is wrong with it.
    async fn look_up(&self, sender: &watch::Sender<Share>) -> Result<(), String> {
        let found = match timeout(self.every, self.resolver.resolve(&self.name)).await {
            Ok(found) => found.map_err(|error| format!("{error}; the share stays as it was"))?,
            Err(_) => return Err("no answer in time; the share stays as it was".into()),
        };
        let share = Share::among(self.own, found.iter().copied());
        let share = share.map_err(|error| format!("{error}; the share stays as it was"))?;
        sender.send_if_modified(|current| {
            let changed = *current != share;
            *current = share;
            changed
        });
        let mut once = found;
        let all = once.len();
        once.sort_unstable();
        once.dedup();
        if once.len() < all { Err(format!("{} of {all} addresses are there twice", all - once.len())) } else { Ok(()) }
    }
}

impl fmt::Debug for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, own, every, .. } = self;
        f.debug_struct("Dns").field("name", name).field("own", own).field("every", every).finish_non_exhaustive()
    }
}

#[cfg(feature = "dns")]
mod system {
    use std::net::IpAddr;

    use super::{Addresses, Dns, Resolve};

    /// The system's resolver, asked on a thread of Tokio's.
    #[derive(Clone, Copy, Debug, Default)]
    struct System;

    impl Resolve for System {
        fn resolve<'a>(&'a self, name: &'a str) -> Addresses<'a> {
            Box::pin(async move {
                let found = tokio::net::lookup_host((name, 0)).await?;
                Ok(found.map(|address| address.ip()).collect())
            })
        }
    }

    impl Dns {
        /// By the system's resolver.
        pub fn system(name: impl Into<String>, own: IpAddr) -> Self {
            Self::new(name, own, System)
        }
    }
}
