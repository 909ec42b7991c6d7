//! `split::Gossip`: small fleets in virtual time, over a simulated network; and over
//! real sockets what only they can show.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]
#![allow(clippy::disallowed_methods, reason = "time is paused, or sockets are real")]

#[path = "sim/fleet.rs"]
mod fleet;
#[path = "sim/gossip.rs"]
mod gossip;

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tower_ratelimit::{
    Algorithm, Descriptor, Dimension, Policy, Quota, RateLimiter, Rule,
    backend::{Split, split::Gossip},
};

use self::gossip::{Network, Plan, SkewedClock, TenantPlan, address, join, simulate, used, worst};

const SECOND: Duration = Duration::from_secs(1);

fn plan() -> Plan {
    Plan::steady(4_000, 1, 8, 14)
}

#[test]
fn uneven_load_uses_the_limit() {
    let windows = simulate(&plan());
    assert!(used(&windows[4..]) >= 0.97, "{}: {windows:?}", used(&windows[4..]));
    assert!(worst(&windows) <= 0.02, "{}: {windows:?}", worst(&windows));
}

#[test]
fn a_jump_of_demand_is_followed_within_three_windows() {
    let windows = simulate(&Plan { jump: Some(8), ..plan() });
    assert!(used(&windows[11..]) >= 0.97, "{}: {windows:?}", used(&windows[11..]));
    assert!(worst(&windows) <= 0.02, "{}: {windows:?}", worst(&windows));
}

#[test]
fn halves_that_are_cut_off_keep_what_they_had() {
    let windows = simulate(&Plan { cut: 5..12, jump: Some(8), ..plan() });
    assert!(worst(&windows) <= 0.02, "{}: {windows:?}", worst(&windows));
}

#[test]
fn who_is_killed_leaves_its_share_unused_for_a_while() {
    let windows = simulate(&Plan { kills_from: Some(6), lost: 50, ..plan() });
    assert!(worst(&windows) <= 0.02, "{}: {windows:?}", worst(&windows));
}

/// How many units it admits now.
async fn admitted(limiter: &RateLimiter, path: &str) -> u64 {
    let mut count = 0;
    while limiter.check(&Descriptor::new(path)).await.is_allowed() {
        count += 1;
    }
    count
}

fn clock(origin: Instant) -> SkewedClock {
    SkewedClock { origin, skew: 0 }
}

#[tokio::test(start_paused = true)]
async fn who_drains_leaves_and_the_others_take_over_with_the_next_windows() {
    let (network, origin) = (Network::new(0), Instant::now());
    let mut fleet = Vec::new();
    for index in 0..3 {
        fleet.push(join(&network, index, 900, clock(origin)).await);
    }
    assert_eq!(admitted(&fleet[0], "/").await, 0, "until it has seen the fleet");
    sleep(SECOND * 5).await;
    for limiter in &fleet {
        assert_eq!(admitted(limiter, "/").await, 300);
    }
    let leaver = fleet.remove(0);
    leaver.drain().await;
    leaver.drain().await;
    // All demand was equal, and is.
    sleep(SECOND * 2).await;
    let left: Vec<u64> = vec![admitted(&fleet[0], "/").await, admitted(&fleet[1], "/").await];
    assert_eq!((admitted(&leaver, "/").await, left), (0, vec![450, 450]));
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_has_its_place_again_at_once() {
    let (network, origin) = (Network::new(0), Instant::now());
    let mut fleet = Vec::new();
    for index in 0..3 {
        fleet.push(join(&network, index, 900, clock(origin)).await);
    }
    sleep(SECOND * 5).await;
    network.unplug(address(2));
    drop(fleet.pop());
    sleep(SECOND * 3).await;
    assert_eq!(admitted(&fleet[0], "/").await, 300, "its share is kept");
    fleet.push(join(&network, 2, 900, clock(origin)).await);
    sleep(SECOND * 3).await;
    let all: u64 = admitted(&fleet[0], "/").await + admitted(&fleet[1], "/").await + admitted(&fleet[2], "/").await;
    assert_eq!(all, 900);
}

#[tokio::test(start_paused = true)]
async fn each_rule_has_shares_of_its_own() {
    let (network, origin) = (Network::new(0), Instant::now());
    let mut fleet = Vec::new();
    for index in 0..2 {
        let seeds = [address(0).to_string()];
        let gossip = Gossip::new("rules", address(index)).seeds(seeds).simulated(network.clone(), clock(origin));
        let quota = || Quota::per_second(800).algorithm(Algorithm::FixedWindow);
        let rule = |id: &str| Rule::new(id).path(format!("/{id}")).tier(quota());
        let policy = Policy::new().rule(rule("a")).rule(rule("b"));
        let builder = RateLimiter::builder().policy(policy).clock(clock(origin));
        fleet.push(builder.backend(gossip.join().await.unwrap()).build().unwrap());
    }
    // Each of a rule's requests comes to one instance.
    for _ in 0..79 {
        sleep(SECOND / 10).await;
        for _ in 0..100 {
            fleet[0].check(&Descriptor::new("/a")).await;
            fleet[1].check(&Descriptor::new("/b")).await;
        }
    }
    // Into a window in which nothing was asked for yet.
    sleep(SECOND / 2).await;
    assert_eq!([admitted(&fleet[0], "/a").await, admitted(&fleet[0], "/b").await], [700, 100]);
    assert_eq!([admitted(&fleet[1], "/a").await, admitted(&fleet[1], "/b").await], [100, 700]);
}

/// Five requests a second each: their number in a round is mostly chance, and a window of a
/// minute keeps the smallest share that it has had.
#[tokio::test(start_paused = true)]
async fn chance_takes_nothing_from_long_windows() {
    let (network, origin) = (Network::new(0), Instant::now());
    let mut fleet = Vec::new();
    for index in 0..4 {
        fleet.push(join(&network, index, 1, clock(origin)).await);
        fleet[index].set_policy(Quota::per_minute(600).algorithm(Algorithm::FixedWindow)).unwrap();
    }
    let (mut random, mut minutes) = (1, [0_u64; 4]);
    for step in 0..600 * minutes.len() {
        for _ in 0..2 {
            let limiter = &fleet[fleet::next_random(&mut random) as usize % fleet.len()];
            minutes[step / 600] += u64::from(limiter.check(&Descriptor::new("/")).await.is_allowed());
        }
        sleep(SECOND / 10).await;
    }
    assert!(minutes[2..].iter().all(|admitted| (540..=600).contains(admitted)), "{minutes:?} of 600");
}

fn tenants() -> TenantPlan {
    TenantPlan { limit: 800, tenants: 4, count: 6, windows: 24, lost: 10, cut: 0..0 }
}

/// Of four tenants, one reaches one instance, one reaches all, one is below its share, and
/// one moves from an instance to another.
fn demand_of_tenants(window: usize, tenant: usize, index: usize) -> u64 {
    match (tenant, index) {
        (0, 2) => 1_000,
        (1, _) => 120,
        (2, 4) => 80,
        (3, 0) if window < 12 => 600,
        (3, 5) if window >= 12 => 600,
        _ => 0,
    }
}

#[test]
fn a_busy_tenant_has_the_share_that_follows_its_own_demand() {
    let windows = tenants().simulate(demand_of_tenants);
    assert!(windows.iter().flatten().all(|admitted| *admitted <= 800), "{windows:?}");
    // Of a floor, the five other instances have a quarter of a sixth each.
    let steady = |windows: &[Vec<u64>]| {
        windows.iter().all(|window| window[0] >= 630 && window[1] == 720 && window[2] == 80 && window[3] == 600)
    };
    assert!(steady(&windows[7..12]) && steady(&windows[15..]), "{windows:?}");
    // The others lose nothing while one moves.
    assert!(windows[7..].iter().all(|window| window[0] >= 630 && window[1] == 720), "{windows:?}");
}

#[test]
fn a_tenant_that_moves_while_halves_are_cut_off_is_never_over_its_limit() {
    let windows = TenantPlan { cut: 9..17, lost: 50, ..tenants() }.simulate(demand_of_tenants);
    assert!(windows.iter().flatten().all(|admitted| *admitted <= 800), "{windows:?}");
    assert!(windows[20..].iter().all(|window| window[0] >= 630 && window[1] == 720 && window[3] == 600), "{windows:?}");
}

/// A tenant that comes to another instance would have a small share of a long window there.
#[tokio::test(start_paused = true)]
async fn tenants_keep_the_shares_of_their_rules_in_long_windows() {
    let (network, origin) = (Network::new(0), Instant::now());
    let mut fleet = Vec::new();
    for index in 0..2 {
        fleet.push(join(&network, index, 1, clock(origin)).await);
        let tier = Quota::new(1_000, SECOND * 120).algorithm(Algorithm::FixedWindow);
        let tenants = Rule::new("api").tier(tier).per([Dimension::Tenant]);
        fleet[index].set_policy(Policy::new().rule(tenants)).unwrap();
    }
    // Who joins has a share of the next window.
    sleep(SECOND * 125).await;
    let descriptor = Descriptor::new("/").tenant("acme");
    let mut admitted = 0;
    for _ in 0..60 {
        for _ in 0..100 {
            admitted += u64::from(fleet[0].check(&descriptor).await.is_allowed());
            // So that the rule's demand is even.
            fleet[1].check(&Descriptor::new("/").tenant("other")).await;
        }
        sleep(SECOND / 10).await;
    }
    assert_eq!(admitted, 500);
    for _ in 0..1_000 {
        admitted += u64::from(fleet[1].check(&descriptor).await.is_allowed());
    }
    assert_eq!(admitted, 1_000);
}

#[tokio::test(start_paused = true)]
async fn who_is_left_alone_has_an_equal_share() {
    let (network, origin) = (Network::new(0), Instant::now());
    let mut fleet = Vec::new();
    for index in 0..2 {
        fleet.push(join(&network, index, 800, clock(origin)).await);
    }
    for _ in 0..79 {
        sleep(SECOND / 10).await;
        (0..100).for_each(|_| drop(fleet[1].try_check(&Descriptor::new("/"))));
    }
    sleep(SECOND / 2).await;
    assert_eq!(admitted(&fleet[1], "/").await, 700);
    network.unplug(address(1));
    drop(fleet.pop());
    sleep(SECOND * 15).await;
    assert_eq!(admitted(&fleet[0], "/").await, 400);
}

#[test]
fn of_many_tenants_the_busiest_have_shares_of_their_own() {
    let plan = TenantPlan { limit: 400, tenants: 32, count: 8, windows: 12, ..tenants() };
    let demand = |tenant: usize| 800 / (1 + tenant as u64 / 4);
    let windows = plan.simulate(|_, tenant, index| match tenant % 4 {
        0 => 320 / 8,
        _ if tenant * 7 % 8 == index => demand(tenant),
        _ => 0,
    });
    assert!(windows.iter().flatten().all(|admitted| *admitted <= 400), "{windows:?}");
    for (tenant, admitted) in windows[11].iter().enumerate() {
        let wanted = if tenant % 4 == 0 { 310 } else { demand(tenant).min(310) };
        assert!(*admitted >= wanted, "{tenant}: {admitted} of {wanted} in {windows:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_starts_alone_has_a_share_of_as_many_as_there_are_seeds() {
    let (network, origin) = (Network::new(0), Instant::now());
    let limiter = join(&network, 0, 900, clock(origin)).await;
    sleep(SECOND * 3).await;
    assert_eq!(admitted(&limiter, "/").await, 300);
}

#[tokio::test]
async fn an_address_that_nobody_reaches_is_rejected() {
    for listen in ["0.0.0.0:7946", "127.0.0.1:0"] {
        let error = Gossip::new("fleet", listen.parse().unwrap()).join().await.unwrap_err();
        assert!(error.to_string().contains("advertise"), "{error}");
    }
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(Gossip::new("fleet", taken.local_addr().unwrap()).join().await.is_err());
}

fn free_address() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn real(fleet: &str, own: SocketAddr, seed: SocketAddr) -> Split {
    let gossip = Gossip::new(fleet, own).seeds([seed.to_string()]).every(Duration::from_millis(20));
    gossip.join().await.unwrap()
}

async fn until(is_so: impl Fn() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let wait = async {
        while !is_so() {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(SECOND * 30, wait).await.unwrap();
}

#[tokio::test]
async fn foreign_and_malformed_datagrams_change_nothing() {
    let (first, second, foreign) = (free_address(), free_address(), free_address());
    let fleet = [real("shop", first, first).await, real("shop", second, first).await];
    until(|| fleet.iter().all(|split| split.share().count() == 2)).await;
    let (stranger, socket) = (real("other", foreign, first).await, UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut random = 7;
    // The stranger waits for ten intervals until it takes a share, of its own fleet.
    while stranger.share().count() == 0 {
        let mut junk: Vec<u8> = (0..fleet::next_random(&mut random) % 200).map(|_| 0).collect();
        junk.iter_mut().for_each(|byte| *byte = fleet::next_random(&mut random) as u8);
        // Most begin as messages do: two fixed bytes, a version, and a kind.
        if let [first, second, version, kind, ..] = &mut *junk {
            (*first, *second, *version, *kind) = (0x53, 0xb0, *version % 3, *kind % 5);
        }
        socket.send_to(&junk, first).unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(stranger.share().count(), 1);
    assert!(fleet.iter().all(|split| split.share().count() == 2));
    // Both still hear each other.
    let [first, second] = fleet;
    let limiter = RateLimiter::builder().policy(Quota::per_second(9)).backend(first).build().unwrap();
    limiter.drain().await;
    until(|| second.share().count() == 1).await;
}
