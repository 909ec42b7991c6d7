//! Shares that follow demand, by gossip between the instances: [`Gossip`].
//!
//! It is glue: `chitchat` finds the members, detects failures and spreads what each
//! says, one value for each rule and key that it claims; `by_demand.rs` computes the
//! shares. The invariants: a datagram that is malformed, or from another fleet's seed,
//! changes no share; and what cannot be read is as if it had not been said.

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use chitchat::{
    Chitchat, ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState, ProtocolVersion,
    spawn_chitchat,
    transport::{Transport, UdpTransport},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use super::{
    Split,
    by_demand::{Claim, Claims, DemandShares, Member, Patience, View},
    demand::OwnDemand,
    machines::ShareMachines,
    rule_shares::{Subject, for_all_rules},
};
use crate::{
    algorithm::Share,
    backend::MAX_KEYS,
    observe,
    time::{Clock, SystemClock, nanos},
};

/// All instances say what they were asked for at the same time, once in so many gossip
/// intervals: so views are equal most of the time.
const INTERVALS_PER_ROUND: u32 = 10;

/// An instance that hears of no other for so many intervals is cut off, even if its failure detector
/// has stopped with its socket.
const DEAF_AFTER: u32 = 20;

/// Shares that follow demand: instances find each other, say what they are asked for
/// under each rule, and take their share, without a store.
///
/// Each second (ten gossip intervals), every instance tells the others how many units
/// it is asked for under each rule: on average over as many seconds as it takes to count
/// 1,024, at most a minute, unless it changes by more than chance. From that all compute the same shares: a quarter
/// of an equal share for everyone at least, and the rest in proportion to demand. A
/// smaller share applies at once. A larger one applies once what the instance sees of
/// the fleet has not changed for two gossip intervals and the others say that they hold
/// no more than the rest, and to windows from the next one on.
///
/// A rule that counts by tenant (or another key) has the same share for all of them, with
/// the exception of its busiest: a tenant of which an instance refuses at least eight units in a
/// second has a share that follows its own demand, from the third or fourth window on. So
/// one that reaches few instances is not held to their shares of its limit. Of each rule,
/// the fleet has about 64 such tenants, an instance at most 16 and at least one (of all rules
/// 64), and an instance 1,024 in its life. Demand is known in units a second, so those with a
/// few a minute keep the rule's share. So do all in tiers that take more than a minute to
/// fill: a tenant that moves to another instance has at first a quarter of an equal share
/// there, in windows until the next one.
///
/// ```no_run
/// use tower_ratelimit::{Quota, RateLimiter, backend::split::Gossip};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = Gossip::new("shop-api", "10.0.0.2:7946".parse()?)
///     .seeds(["10.0.0.1:7946", "gossip.shop.svc.cluster.local:7946"])
///     .join()
///     .await?;
/// let limiter = RateLimiter::builder().policy(Quota::per_second(100_000)).backend(backend).build()?;
/// // Before the process stops:
/// limiter.drain().await;
/// # Ok(())
/// # }
/// ```
///
/// # What the fleet admits
///
/// The limit; `Split`'s documentation says by which algorithm. An instance takes more of a
/// rule only after the others have said that they hold less. So it takes two that miss what the other
/// says for more than two gossip intervals to exceed the limit. Then it is at most the limit
/// times the largest factor by which two views differ on one instance's part, plus the
/// shares of instances that not all others see.
///
/// | failure | effect |
/// |---|---|
/// | messages are lost or late | larger shares apply later |
/// | an instance joins, or restarts | it admits nothing until it has seen the fleet, then its share of the next window |
/// | an instance is killed | its share is unused for [`forget_after`](Self::forget_after), then the others divide it |
/// | a partition | each side keeps what it held, and divides it by demand. After `forget_after`, a side with more than half of the instances takes all, so that together they admit less than twice the limit |
/// | instances whose policies count a rule by different keys | a busy tenant may have its whole limit at some, and beside it the rule's share at those that count otherwise |
/// | all others are missing | an equal share of the instances that were known last |
/// | no seed answers an instance that starts | after ten intervals it takes one share of as many as there are seeds. A name is one seed, so if it is the only one, the instance takes the whole limit: name several, or addresses |
/// | [`drain`](crate::RateLimiter::drain) | it leaves: it admits nothing more, and others take over with the next window |
///
/// # Security
///
/// Messages are neither encrypted nor authenticated: a program that reaches the UDP port can
/// change shares. Keep it private to the fleet. The fleet's name only keeps fleets apart
/// that reach each other by mistake. What cannot be read is ignored.
#[must_use]
pub struct Gossip {
    fleet: String,
    listen: SocketAddr,
    advertised: SocketAddr,
    seeds: Vec<String>,
    interval: Duration,
    forget_after: Duration,
    clock: Arc<dyn Clock>,
    transport: Box<dyn Transport>,
}

impl Gossip {
    /// A member of the fleet of this name, which the others reach by UDP at `listen`.
    pub fn new(fleet: impl Into<String>, listen: SocketAddr) -> Self {
        Self {
            fleet: fleet.into(),
            listen,
            advertised: listen,
            seeds: Vec::new(),
            interval: Duration::from_millis(100),
            forget_after: Duration::from_secs(10),
            clock: Arc::new(SystemClock::new()),
            transport: Box::new(UdpTransport),
        }
    }

    /// Some of the other instances, as `host:port`; its own address does no harm. A
    /// host's name stands for all of its addresses, and is resolved again each minute.
    pub fn seeds(mut self, seeds: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.seeds.extend(seeds.into_iter().map(Into::into));
        self
    }

    /// The address at which others reach this instance, and which names it, if it is
    /// not the one that it listens on.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertised = address;
        self
    }

    /// How often it gossips with three other instances, at least a millisecond. Default: 100 ms.
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = interval.max(Duration::from_millis(1));
        self
    }

    /// How long an instance that does not answer keeps its share. Default: 10 seconds.
    /// More is safer in a partition; less wastes less when an instance is killed.
    pub fn forget_after(mut self, time: Duration) -> Self {
        self.forget_after = time;
        self
    }

    /// Another network and another clock, for simulations.
    #[doc(hidden)]
    pub fn simulated(mut self, transport: impl Transport, clock: impl Clock) -> Self {
        (self.transport, self.clock) = (Box::new(transport), Arc::new(clock));
        self
    }

    /// Joins the fleet, in a task of the current Tokio runtime that ends when the
    /// backend is dropped or has left.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound, or names no interface or port and no other is
    /// advertised.
    pub async fn join(self) -> io::Result<Split> {
        let name = self.advertised.to_string();
        if self.advertised.ip().is_unspecified() || self.advertised.port() == 0 {
            let reason = format!("others cannot reach {name}: advertise an address of this instance, and a port");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let patience = Patience {
            gossip_interval: nanos(self.interval),
            forget_after: nanos(self.forget_after),
            expected: self.seeds.len() as u64,
        };
        let config = self.config(&name);
        let handle = spawn_chitchat(config, Vec::new(), &*self.transport).await.map_err(io::Error::other)?;
        let (leave, leaves) = mpsc::channel(1);
        let machines = Arc::new(ShareMachines::by_demand(leave));
        let membership = Membership {
            handle,
            machines: Arc::downgrade(&machines),
            shares: DemandShares::new(name, patience),
            clock: self.clock,
            interval: self.interval,
            started: Instant::now(),
            round: None,
            demand: OwnDemand::default(),
            said: Said::default(),
            members: 1,
            heard: (0, Instant::now()),
            is_deaf: false,
        };
        tokio::spawn(membership.run(leaves));
        Ok(Split::with(machines, MAX_KEYS))
    }

    fn config(&self, name: &str) -> ChitchatConfig {
        let generation = self.clock.now().as_nanos();
        let failure_detector_config = FailureDetectorConfig {
            initial_interval: self.interval * 2,
            max_interval: self.interval * 20,
            ..FailureDetectorConfig::default()
        };
        ChitchatConfig {
            chitchat_id: ChitchatId::new(name, generation, self.advertised),
            cluster_id: self.fleet.clone(),
            gossip_interval: self.interval,
            listen_addr: self.listen,
            seed_nodes: self.seeds.clone(),
            failure_detector_config,
            marked_for_deletion_grace_period: Duration::from_secs(60),
            catchup_callback: None,
            extra_liveness_predicate: None,
            protocol_version: ProtocolVersion::V0,
        }
    }
}

impl fmt::Debug for Gossip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fleet, listen, advertised, seeds, interval, .. } = self;
        f.debug_struct("Gossip")
            .field("fleet", fleet)
            .field("listen", listen)
            .field("advertised", advertised)
            .field("seeds", seeds)
            .field("interval", interval)
            .finish_non_exhaustive()
    }
}

/// This instance in its fleet.
struct Membership {
    handle: ChitchatHandle,
    machines: Weak<ShareMachines>,
    shares: DemandShares,
    clock: Arc<dyn Clock>,
    interval: Duration,
    started: Instant,
    /// The round that the demand is of.
    round: Option<u64>,
    demand: OwnDemand,
    said: Said,
    /// How many live members there are, this one included.
    members: usize,
    /// The sum of the others' heartbeats, and when it was last another.
    heard: (u64, Instant),
    is_deaf: bool,
}

impl Membership {
    async fn run(mut self, mut leaves: mpsc::Receiver<oneshot::Sender<()>>) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let Some(machines) = self.machines.upgrade() else { break };
                    self.follow(&machines).await;
                }
                Some(left) = leaves.recv() => {
                    self.leave().await;
                    let _ = left.send(());
                    break;
                }
            }
        }
        let _ = self.handle.shutdown().await;
    }

    /// Says what is asked for here, and takes the share that follows from what the
    /// others say.
    async fn follow(&mut self, machines: &ShareMachines) {
        self.measure(machines);
        let claims = self.shares.claims(&self.demand.published(), self.demand.busy());
        let (said, own) = (&mut self.said, Arc::new(claims));
        let (mut view, heartbeats) = self
            .handle
            .with_chitchat(|chitchat| {
                publish(chitchat.self_node_state(), &own);
                said.view(chitchat, &own)
            })
            .await;
        let now = Instant::now();
        if heartbeats != self.heard.0 {
            self.heard = (heartbeats, now);
        }
        let name = &*self.handle.chitchat_id().node_id;
        let is_deaf = view.len() > 1 && now - self.heard.1 > self.interval * DEAF_AFTER;
        if is_deaf && !self.is_deaf {
            let problem = "no other instance is heard of; an equal share of those known last is in force";
            observe::log_share_source(name, problem);
        }
        self.is_deaf = is_deaf;
        if is_deaf {
            view.iter_mut().filter(|(other, _)| **other != *name).for_each(|(_, member)| member.is_live = false);
        }
        self.members = view.values().filter(|member| member.is_live).count();
        let changed = self.shares.update(view, nanos(now - self.started));
        if let Some(shares) = changed {
            let rules = shares.iter().filter(|(subject, _)| subject.key.is_none() && !subject.rule.is_empty());
            observe::report_shares(rules.map(|(subject, share)| (&*subject.rule, share.fraction())));
            machines.set(&shares, self.clock.now().as_nanos());
        }
        observe::report_fleet(self.members, now - self.heard.1);
    }

    /// Reads the demand once a round, which begins for all instances at the same time,
    /// as far as their clocks agree.
    fn measure(&mut self, machines: &ShareMachines) {
        let round = self.clock.now().as_nanos() / nanos(self.interval * INTERVALS_PER_ROUND).max(1);
        let Some(last) = self.round.replace(round) else { return };
        if round == last {
            return;
        }
        let rounds = round.saturating_sub(last).max(1);
        self.demand.measure(machines.take_asked(), self.shares.wanted(), rounds, self.members);
    }

    /// Tells the others, and admits nothing more.
    async fn leave(&self) {
        if let Some(machines) = self.machines.upgrade() {
            machines.set(&for_all_rules(Share::none()), self.clock.now().as_nanos());
        }
        let others: HashSet<SocketAddr> = self
            .handle
            .with_chitchat(|chitchat| {
                chitchat.self_node_state().set(LEFT, true);
                chitchat.live_nodes().map(|id| id.gossip_advertise_addr).collect()
            })
            .await;
        for address in others {
            let _ = self.handle.gossip(address);
        }
        // Their answers ask for what is new here.
        sleep_until(Instant::now() + self.interval * 2).await;
    }
}

/// What a member says of a rule has the rule's id behind this; of a key, its number and the
/// rule's id behind the other.
const RULE: &str = "rule:";
const KEY: &str = "key:";
/// Set by a member that leaves.
const LEFT: &str = "left";

/// Says what this instance claims, and nothing else any more.
fn publish(own: &mut NodeState, claims: &Claims) {
    let is_over = |name: &&str| name.starts_with(KEY) && subject(name).is_none_or(|key| !claims.contains_key(&key));
    let over: Vec<String> = own.key_values().map(|(name, _)| name).filter(is_over).map(str::to_owned).collect();
    over.iter().for_each(|name| own.delete(name));
    for (Subject { rule, key }, Claim { demand, held, is_wanted }) in claims {
        let (key, value) = match key {
            None => (format!("{RULE}{rule}"), format!("{demand} {held}")),
            Some(key) => (format!("{KEY}{key:016x}:{rule}"), format!("{demand} {held} {}", u8::from(*is_wanted))),
        };
        // The same value would be sent again.
        if own.get(&key) != Some(&value) {
            own.set(key, value);
        }
    }
}

/// What the others said, by name, as it was last read: their generation, and the version of
/// what they say.
#[derive(Debug, Default)]
struct Said(HashMap<String, ((u64, u64), Arc<Claims>)>);

impl Said {
    /// The fleet as seen here, and the sum of the others' heartbeats.
    fn view(&mut self, chitchat: &Chitchat, claims: &Arc<Claims>) -> (View, u64) {
        let own = &*chitchat.self_chitchat_id().node_id;
        let live: HashSet<&ChitchatId> = chitchat.live_nodes().collect();
        let mut latest = HashMap::<&str, (&ChitchatId, &NodeState)>::new();
        let mut heartbeats = 0_u64;
        for (id, state) in chitchat.node_states().iter().filter(|(id, _)| &*id.node_id != own) {
            heartbeats = heartbeats.wrapping_add(state.heartbeat().into());
            let known = latest.entry(&id.node_id).or_insert((id, state));
            if known.0.generation_id < id.generation_id {
                *known = (id, state);
            }
        }
        let present = latest.into_iter().filter(|(_, (_, state))| state.get(LEFT).is_none());
        let mut view: View = present
            .map(|(name, (id, state))| {
                (name.to_owned(), Member { is_live: live.contains(id), claims: self.read(id, state) })
            })
            .collect();
        self.0.retain(|name, _| view.contains_key(name));
        view.insert(own.to_owned(), Member { is_live: true, claims: Arc::clone(claims) });
        (view, heartbeats)
    }

    /// What a member says, read again where it says something new.
    fn read(&mut self, id: &ChitchatId, state: &NodeState) -> Arc<Claims> {
        let said = (id.generation_id, state.max_version());
        match self.0.get(&*id.node_id) {
            Some((read, claims)) if *read == said => Arc::clone(claims),
            _ => {
                let claims = Arc::new(claims_of(state));
                self.0.insert(id.node_id.to_string(), (said, Arc::clone(&claims)));
                claims
            }
        }
    }
}

fn claims_of(state: &NodeState) -> Claims {
    let claim = |(name, value): (&str, &str)| {
        let mut words = value.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (demand, held) = (number()?, number()?);
        Some((subject(name)?, Claim { demand, held, is_wanted: number() == Some(1) }))
    };
    state.key_values().filter_map(claim).collect()
}

/// What a member's key is about.
fn subject(name: &str) -> Option<Subject> {
    if let Some(rule) = name.strip_prefix(RULE) {
        return Some(Subject::rule(rule));
    }
    let (key, rule) = name.strip_prefix(KEY)?.split_once(':')?;
    Some(Subject { rule: rule.to_owned(), key: Some(u64::from_str_radix(key, 16).ok()?) })
}
