//! Where an instance's [`Share`] comes from: an index and a count, weights, addresses, the
//! environment, or a DNS name ([`Dns`]).
//!
//! How a limit is shared out is in `algorithm/share.rs`. The invariants: an index is
//! below the number of instances, and not all weights are zero; an error names what was
//! wrong; a failed or contradictory answer of DNS leaves the last share in force.

use std::{collections::BTreeSet, env, fmt, fs, future::Future, io, net::IpAddr, pin::pin, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, select};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

pub use crate::algorithm::Share;
use crate::{algorithm::gcd, error::ConfigError, observe};

impl Share {
    /// One of `count` equal shares. Any integer type will do.
    ///
    /// # Errors
    ///
    /// If the count is 0 or above [`MAX_COUNT`](Self::MAX_COUNT), or the index
    /// is not below it.
    pub fn new(
        index: impl TryInto<u64> + Copy + fmt::Display,
        count: impl TryInto<u64> + Copy + fmt::Display,
    ) -> Result<Self, ConfigError> {
        Self::from_keys(index, "share.index", count, "share.count")
    }

    /// One of `count` equal shares; errors name the given keys.
    fn from_keys(
        index: impl TryInto<u64> + Copy + fmt::Display,
        index_key: &str,
        count: impl TryInto<u64> + Copy + fmt::Display,
        count_key: &str,
    ) -> Result<Self, ConfigError> {
        let Some(instances) = count.try_into().ok().filter(|count| (1..=Self::MAX_COUNT).contains(count)) else {
            return Err(ConfigError::new(count_key, format!("must be from 1 to {}", Self::MAX_COUNT)).with_value(count));
        };
        match index.try_into().ok().filter(|index| *index < instances) {
            Some(index) => Ok(Self::equal(index, instances)),
            None => Err(ConfigError::new(index_key, format!("must be below the count, {instances}")).with_value(index)),
        }
    }

    /// The share `weights[index]` of their sum, for instances that differ in
    /// size. All instances need the same weights. Equal weights give equal
    /// shares. How a limit is shared out by weight is described at
    /// [`Split`](super::Split#what-the-fleet-admits).
    ///
    /// Weights become integers, by which limits are shared out exactly. They
    /// are kept as they are if multiplication by a power of two makes all of
    /// them whole (1, 2.5, 0.125). Otherwise (0.1) they are rounded to one part
    /// in 2^46 of their sum. An instance with a weight has a share, however
    /// small; one with a weight of 0 admits nothing.
    ///
    /// # Errors
    ///
    /// If there are no weights or more than [`MAX_COUNT`](Self::MAX_COUNT), if
    /// one is negative or not finite, if all are 0, or if the index is not
    /// below their number.
    pub fn weighted(
        index: impl TryInto<usize> + Copy + fmt::Display,
        weights: impl Into<Arc<[f64]>>,
    ) -> Result<Self, ConfigError> {
        let weights = to_integers(&weights.into(), Self::MAX_COUNT)?;
        match index.try_into().ok().filter(|index| *index < weights.len()) {
            Some(index) => Ok(Self::by_weight(index, &weights)),
            None => {
                let reason = format!("must be below the number of weights, {}", weights.len());
                Err(ConfigError::new("share.index", reason).with_value(index))
            }
        }
    }

    /// The share of the instance at `own` among all `addresses`, in their
    /// order. All instances have to be given the same set.
    ///
    /// Addresses of another family than `own` are left out, so an instance with
    /// an address of each family counts once. Duplicates count once.
    ///
    /// # Errors
    ///
    /// If `own` is not among them.
    pub fn among(own: IpAddr, addresses: impl IntoIterator<Item = IpAddr>) -> Result<Self, ConfigError> {
        let own = own.to_canonical();
        let mut all: Vec<IpAddr> = addresses.into_iter().map(|address| address.to_canonical()).collect();
        all.retain(|address| address.is_ipv4() == own.is_ipv4());
        all.sort_unstable();
        all.dedup();
        match all.binary_search(&own) {
            Ok(index) => Self::from_keys(index, "share.address", all.len(), "share.addresses"),
            Err(_) => {
                let reason = format!("is not among the {} addresses of its kind", all.len());
                Err(ConfigError::new("share.address", reason).with_value(own))
            }
        }
    }

    /// The index and the count from two environment variables.
    ///
    /// # Errors
    ///
    /// If a variable is missing, is no number, or is out of range: the error
    /// names the variable and its value.
    ///
    /// ```
    /// use tower_ratelimit::backend::Share;
    ///
    /// let error = Share::from_env("NO_INDEX", "NO_COUNT").unwrap_err();
    /// assert_eq!(error.to_string(), "NO_INDEX: is not set in the environment");
    /// ```
    pub fn from_env(index: &str, count: &str) -> Result<Self, ConfigError> {
        Self::from_keys(number(index)?, index, number(count)?, count)
    }

    /// The index from the ordinal at the end of this host's name (`web-3` has
    /// the index 3), as in a Kubernetes StatefulSet, and the count from an
    /// environment variable.
    ///
    /// The host's name is the variable `HOSTNAME`, which Kubernetes sets, or
    /// else the content of `/etc/hostname`. The StatefulSet's ordinals have to
    /// start at 0.
    ///
    /// # Errors
    ///
    /// As for [`from_env`](Self::from_env), and if the name has no ordinal or
    /// one that is not below the count.
    pub fn from_stateful_set(count: &str) -> Result<Self, ConfigError> {
        let host = variable("HOSTNAME").or_else(|error| fs::read_to_string("/etc/hostname").map_err(|_| error))?;
        Self::from_host_name(&host, number(count)?)
    }

    /// The index from the ordinal at the end of a host's name, up to its first
    /// dot, and a count.
    ///
    /// # Errors
    ///
    /// If the name has no ordinal, or one that is not below the count.
    ///
    /// ```
    /// use tower_ratelimit::backend::Share;
    ///
    /// assert_eq!(Share::from_host_name("web-3.web.shop.svc.cluster.local", 5)?, Share::new(3, 5)?);
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn from_host_name(name: &str, count: u64) -> Result<Self, ConfigError> {
        let host = name.trim().split('.').next().unwrap_or_default();
        let ordinal = host.rsplit_once('-').map(|(_, ordinal)| ordinal).filter(|ordinal| is_number(ordinal));
        let index = ordinal.and_then(|ordinal| ordinal.parse::<u64>().ok());
        match index {
            Some(index) => Self::from_keys(index, "host name", count, "share.count"),
            None => Err(ConfigError::new("host name", "must end with an ordinal, as `web-3`").with_value(name.trim())),
        }
    }
}

fn variable(name: &str) -> Result<String, ConfigError> {
    env::var(name).map_err(|error| match error {
        env::VarError::NotPresent => ConfigError::new(name, "is not set in the environment"),
        env::VarError::NotUnicode(value) => {
            ConfigError::new(name, "must be a whole number").with_value(value.to_string_lossy())
        }
    })
}

fn number(name: &str) -> Result<u64, ConfigError> {
    let value = variable(name)?;
    let digits = Some(value.trim()).filter(|digits| is_number(digits));
    let number = digits.and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| ConfigError::new(name, "must be a whole number").with_value(value))
}

/// Whether the text is digits only: parsing would also take a sign.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Sums stay below two to the power of this. Then no product with a limit needs
/// more than 128 bits, and no sum more than 64.
const MAX_BITS: i32 = 48;

/// Weights as integers, in the same proportions and in lowest terms. Every instance derives
/// the same ones from the same weights. A positive weight never becomes 0.
fn to_integers(weights: &[f64], max_count: u64) -> Result<Vec<u64>, ConfigError> {
    let rejected = |reason: &str| ConfigError::new("share.weights", reason);
    if weights.is_empty() {
        return Err(rejected("must have at least one"));
    }
    if weights.len() as u64 > max_count {
        return Err(rejected(&format!("must be at most {max_count}")).with_value(weights.len()));
    }
    if let Some(index) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0) {
        let key = format!("share.weights[{index}]");
        return Err(ConfigError::new(key, "must be finite, and not negative").with_value(weights[index]));
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return Err(rejected("must not all be 0"));
    }
    // So that the sum of numbers up to one fits.
    let count_bits = (usize::BITS - weights.len().leading_zeros()).cast_signed();
    let factor = 2f64.powi(MAX_BITS - 1 - count_bits);
    let power = power_above(largest);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and below 2^48")]
    let to_integer = |weight: &f64| match weight / power {
        relative if relative > 0.0 => ((relative * factor).round() as u64).max(1),
        _ => 0,
    };
    let integers: Vec<u64> = weights.iter().map(to_integer).collect();
    // In lowest terms all combinations of extra units recur soonest.
    let divisor = integers.iter().copied().filter(|integer| *integer > 0).fold(0, gcd);
    Ok(integers.into_iter().map(|integer| integer / divisor).collect())
}

/// The power of two at or above a positive number, or next to it where that
/// would be infinite; dividing by it is exact.
fn power_above(value: f64) -> f64 {
    let (mut power, mut scaled) = (1.0, value);
    while scaled > 1.0 && power < f64::MAX / 2.0 {
        (power, scaled) = (power * 2.0, scaled / 2.0);
    }
    while scaled <= 0.5 && power > f64::MIN_POSITIVE {
        (power, scaled) = (power / 2.0, scaled * 2.0);
    }
    power
}

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
        let addresses = match timeout(self.interval, (self.resolver)(self.name.clone())).await {
            Ok(found) => found.map_err(|error| kept(&error))?,
            Err(_) => return Err(kept(&"the resolver did not answer in time")),
        };
        let share = Share::among(self.own, addresses.iter().copied()).map_err(|error| kept(&error))?;
        sender.send_if_modified(|current| {
            let changed = *current != share;
            *current = share;
            changed
        });
        let (all, different) = (addresses.len(), BTreeSet::from_iter(addresses).len());
        match all - different {
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

/// Finds all current addresses of a name.
type Resolver = dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync;

#[cfg(test)]
mod tests {
    mod weights;
}
