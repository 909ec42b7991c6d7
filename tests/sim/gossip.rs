//! Simulates a fleet that gossips, in virtual time: each instance has a real limiter, a
//! clock of its own, and the real membership, whose messages go over a simulated network.
//!
//! Used by `tests/gossip.rs` and `benches/simulate`.
#![allow(dead_code, reason = "each uses some of it")]
#![allow(clippy::unwrap_used)]

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use chitchat::{
    ChitchatEnvelope,
    transport::{RecvOutcome, SendOutcome, Socket, Transport},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep_until},
};
use tower_ratelimit::{
    Algorithm, Descriptor, Dimension, Policy, Quota, RateLimiter, Rule,
    backend::split::Gossip,
    time::{Clock, Timestamp},
};

use super::fleet::{START, Window, check, next_random};

const SECOND: Duration = Duration::from_secs(1);

/// A simulation. Load is by Zipf's law: the second instance has half of the first's,
/// the third a third.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The fleet's limit, in units a second.
    pub(crate) limit: u64,
    /// The units of each request.
    pub(crate) cost: u64,
    pub(crate) count: usize,
    pub(crate) windows: usize,
    /// The demand, as a multiple of the limit.
    pub(crate) load: f64,
    /// The largest difference between two clocks.
    pub(crate) clock_skew: Duration,
    /// Of a thousand messages.
    pub(crate) lost: u64,
    /// From this window on the order of the instances is the reverse.
    pub(crate) jump: Option<usize>,
    /// From this window on an instance is killed in each, and another one starts.
    pub(crate) kills_from: Option<usize>,
    /// In these windows the two halves of the fleet do not reach each other.
    pub(crate) cut: std::ops::Range<usize>,
}

impl Plan {
    /// A fleet that is asked for half as much again as its limit, over a network that loses
    /// one message in a hundred.
    pub(crate) fn steady(limit: u64, cost: u64, count: usize, windows: usize) -> Self {
        Self {
            limit,
            cost,
            count,
            windows,
            load: 1.5,
            clock_skew: Duration::from_millis(100),
            lost: 10,
            jump: None,
            kills_from: None,
            cut: 0..0,
        }
    }
}

const STEPS: u64 = 20;

/// Delivers messages after 2 ms, in order, or not at all.
#[derive(Clone)]
pub(crate) struct Network(Arc<Mutex<Links>>);

struct Links {
    sockets: HashMap<SocketAddr, UnboundedSender<(Instant, RecvOutcome)>>,
    is_cut: bool,
    lost: u64,
    random: u64,
}

impl Network {
    pub(crate) fn new(lost: u64) -> Self {
        let links = Links { sockets: HashMap::new(), is_cut: false, lost, random: 0x2545_f491_4f6c_dd1d };
        Self(Arc::new(Mutex::new(links)))
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.0.lock().unwrap().is_cut = is_cut;
    }

    /// Nothing more reaches this address.
    pub(crate) fn unplug(&self, address: SocketAddr) {
        self.0.lock().unwrap().sockets.remove(&address);
    }

    fn send(&self, from: SocketAddr, to: SocketAddr, envelope: ChitchatEnvelope) {
        let links = &mut *self.0.lock().unwrap();
        let is_lost = next_random(&mut links.random) % 1_000 < links.lost || links.is_cut && half(from) != half(to);
        // An instance that is unplugged does not send either.
        if !is_lost
            && links.sockets.contains_key(&from)
            && let Some(socket) = links.sockets.get(&to)
        {
            let received = RecvOutcome { from_addr: from, envelope, num_bytes_received: 0 };
            let _ = socket.send((Instant::now() + Duration::from_millis(2), received));
        }
    }
}

/// Every other instance is in one half.
fn half(address: SocketAddr) -> u16 {
    address.port() % 2
}

#[async_trait]
impl Transport for Network {
    async fn open(&self, address: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let (sender, receiver) = unbounded_channel();
        self.0.lock().unwrap().sockets.insert(address, sender);
        Ok(Box::new(Plug { network: self.clone(), address, receiver, next: None }))
    }
}

struct Plug {
    network: Network,
    address: SocketAddr,
    receiver: UnboundedReceiver<(Instant, RecvOutcome)>,
    /// Kept where the future is dropped before it arrives.
    next: Option<(Instant, RecvOutcome)>,
}

#[async_trait]
impl Socket for Plug {
    fn local_addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.address)
    }

    async fn send(&mut self, to: SocketAddr, envelope: ChitchatEnvelope) -> anyhow::Result<SendOutcome> {
        self.network.send(self.address, to, envelope);
        Ok(SendOutcome { num_bytes_sent: 0 })
    }

    async fn recv(&mut self) -> anyhow::Result<RecvOutcome> {
        if self.next.is_none() {
            self.next = self.receiver.recv().await;
        }
        match &self.next {
            Some((due, _)) => sleep_until(*due).await,
            // Unplugged.
            None => std::future::pending().await,
        }
        Ok(self.next.take().unwrap().1)
    }
}

/// Tokio's time, which the simulation pauses, as a wall clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SkewedClock {
    pub(crate) origin: Instant,
    pub(crate) skew: i64,
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        let elapsed = u64::try_from(self.origin.elapsed().as_nanos()).unwrap();
        Timestamp::from_nanos((START + elapsed).saturating_add_signed(self.skew))
    }
}

pub(crate) fn address(index: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 1_000 + u16::try_from(index).unwrap()))
}

/// An instance that joins with the first three as seeds.
pub(crate) async fn join(network: &Network, index: usize, limit: u64, clock: SkewedClock) -> RateLimiter {
    let seeds = (0..3).map(|seed| address(seed).to_string());
    let gossip = Gossip::new("simulated", address(index)).seeds(seeds).simulated(network.clone(), clock);
    let quota = Quota::per_second(limit).algorithm(Algorithm::FixedWindow);
    let backend = gossip.join().await.unwrap();
    RateLimiter::builder().policy(quota).backend(backend).clock(clock).build().unwrap()
}

struct Instance {
    limiter: RateLimiter,
    address: SocketAddr,
    skew: i64,
    due: f64,
    in_window: u64,
}

struct Fleet<'a> {
    plan: &'a Plan,
    network: Network,
    origin: Instant,
    random: u64,
    started: usize,
    instances: Vec<Instance>,
    windows: Vec<Window>,
}

impl Fleet<'_> {
    async fn start(&mut self) -> Instance {
        let half = i64::try_from(self.plan.clock_skew.as_nanos() / 2).unwrap();
        let skew =
            if half > 0 { (next_random(&mut self.random) >> 1).cast_signed() % (2 * half + 1) - half } else { 0 };
        let (index, clock) = (self.started, SkewedClock { origin: self.origin, skew });
        self.started += 1;
        let limiter = join(&self.network, index, self.plan.limit, clock).await;
        Instance { limiter, address: address(index), skew, due: 0.0, in_window: 0 }
    }

    /// Kills any but a seed; another one takes its load.
    async fn replace_one(&mut self) {
        let index = 3 + next_random(&mut self.random) as usize % (self.instances.len() - 3);
        self.network.unplug(self.instances[index].address);
        self.instances[index] = self.start().await;
    }

    /// Asks for what a step brings, and counts it in the window of each one's clock.
    fn spend(&mut self, number: usize) {
        let Self { plan, instances, windows, origin, .. } = self;
        let count = instances.len();
        let harmonic: f64 = (1..=count).map(|rank| 1.0 / rank as f64).sum();
        let is_reversed = plan.jump.is_some_and(|jump| number >= jump);
        for (index, instance) in instances.iter_mut().enumerate() {
            let rank = if is_reversed { count - index } else { index + 1 };
            let requests = plan.load * plan.limit as f64 / plan.cost as f64;
            instance.due += requests / harmonic / rank as f64 / STEPS as f64;
            let asked = instance.due as u64;
            instance.due -= asked as f64;
            let admitted = (0..asked).filter(|_| check(&instance.limiter, plan.cost).is_allowed()).count() as u64;
            let admitted = admitted * plan.cost;
            instance.in_window += admitted;
            windows[number].in_true_second += admitted;
            let own = (origin.elapsed().as_nanos() as i64 + instance.skew).div_euclid(SECOND.as_nanos() as i64);
            if let Some(own) = usize::try_from(own).ok().and_then(|own| windows.get_mut(own)) {
                own.admitted += admitted;
            }
        }
    }

    async fn window(&mut self, number: usize) {
        self.network.cut(self.plan.cut.contains(&number));
        self.instances.iter_mut().for_each(|instance| instance.in_window = 0);
        for step in 0..STEPS {
            // In the middle of a step, so that no clock is on a window's border.
            let passed = SECOND * u32::try_from(number).unwrap() + SECOND / STEPS as u32 * step as u32;
            sleep_until(self.origin + passed + SECOND / STEPS as u32 / 2).await;
            if step == STEPS / 3 && self.plan.kills_from.is_some_and(|from| number >= from) {
                self.replace_one().await;
            }
            self.spend(number);
        }
        let of_each = || self.instances.iter().map(|instance| instance.in_window);
        let (least, most) = (of_each().min().unwrap_or(0), of_each().max().unwrap_or(0));
        (self.windows[number].least, self.windows[number].most) = (least, most);
    }
}

/// Runs the simulation. Returns the result of each window, the first of which see the
/// fleet assemble.
pub(crate) fn simulate(plan: &Plan) -> Vec<Window> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let windows = vec![Window { limit: plan.limit, ..Window::default() }; plan.windows];
        let (network, random) = (Network::new(plan.lost), 0x9e37_79b9_7f4a_7c15);
        let (origin, instances) = (Instant::now(), Vec::new());
        let mut fleet = Fleet { plan, network, origin, random, started: 0, instances, windows };
        for _ in 0..plan.count {
            let instance = fleet.start().await;
            fleet.instances.push(instance);
        }
        for number in 0..plan.windows {
            fleet.window(number).await;
        }
        fleet.windows
    })
}

/// A simulation of a rule that counts by tenant, in fixed windows of a second.
#[derive(Clone, Debug)]
pub(crate) struct TenantPlan {
    /// Of each tenant, in units a second.
    pub(crate) limit: u64,
    pub(crate) tenants: usize,
    pub(crate) count: usize,
    pub(crate) windows: usize,
    /// Of a thousand messages.
    pub(crate) lost: u64,
    /// In these windows the two halves of the fleet do not reach each other.
    pub(crate) cut: std::ops::Range<usize>,
}

impl TenantPlan {
    /// Runs it. `demand` is what a tenant asks an instance for in a window, in this order.
    /// Returns what each tenant was admitted in each window.
    pub(crate) fn simulate(&self, demand: impl Fn(usize, usize, usize) -> u64) -> Vec<Vec<u64>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (network, origin) = (Network::new(self.lost), Instant::now());
            let quota = Quota::per_second(self.limit).algorithm(Algorithm::FixedWindow);
            let rule = Rule::new("api").tier(quota).per([Dimension::Tenant]);
            let mut fleet = Vec::new();
            for index in 0..self.count {
                fleet.push(join(&network, index, 1, SkewedClock { origin, skew: 0 }).await);
                fleet[index].set_policy(Policy::new().rule(rule.clone())).unwrap();
            }
            let mut admitted = vec![vec![0; self.tenants]; self.windows];
            for (number, admitted) in admitted.iter_mut().enumerate() {
                network.cut(self.cut.contains(&number));
                for step in 0..STEPS {
                    let passed = SECOND * u32::try_from(number).unwrap() + SECOND / STEPS as u32 * step as u32;
                    sleep_until(origin + passed + SECOND / STEPS as u32 / 2).await;
                    for (tenant, admitted) in admitted.iter_mut().enumerate() {
                        let descriptor = Descriptor::new("/").tenant(format!("tenant-{tenant}"));
                        for (index, limiter) in fleet.iter().enumerate() {
                            let asked = demand(number, tenant, index);
                            let asked = asked * (step + 1) / STEPS - asked * step / STEPS;
                            let is_allowed = |_: &u64| limiter.try_check(&descriptor).unwrap().is_allowed();
                            *admitted += (0..asked).filter(is_allowed).count() as u64;
                        }
                    }
                }
            }
            admitted
        })
    }
}

/// The part of the limit that some windows used.
pub(crate) fn used(windows: &[Window]) -> f64 {
    let sum = |of: fn(&Window) -> u64| windows.iter().map(of).sum::<u64>() as f64;
    sum(|window| window.admitted) / sum(|window| window.limit)
}

/// By how much the worst of some windows was over the limit.
pub(crate) fn worst(windows: &[Window]) -> f64 {
    windows.iter().map(|window| window.over() as f64 / window.limit as f64).fold(0.0, f64::max)
}
