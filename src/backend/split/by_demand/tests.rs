//! Small fleets that gossip over a network of steps: messages that are lost, late or
//! cut off, members that join, leave, are killed and come back.

use proptest::prelude::*;

use super::*;

const RULE: &str = "api";
/// Of this many steps, each a gossip interval.
const FORGET_AFTER: u64 = 30;
/// After this many steps without news of it, a member is missing.
const MISSING_AFTER: u64 = 6;

fn patience(expected: u64) -> Patience {
    Patience { gossip_interval: 1, forget_after: FORGET_AFTER, expected }
}

fn rule() -> Subject {
    Subject::rule(RULE)
}

fn key() -> Subject {
    Subject { key: Some(1), ..rule() }
}

fn claim(demand: u64, held: u64) -> Claim {
    Claim { demand, held, is_wanted: false }
}

fn member(demand: u64, held: u64) -> Member {
    Member { is_live: true, claims: Arc::new(Claims::from([(rule(), claim(demand, held))])) }
}

fn parts(members: &[Member]) -> Vec<f64> {
    let weights = weights(&members.iter().collect::<Vec<_>>(), &rule());
    let total: u64 = weights.iter().sum();
    weights.iter().map(|weight| *weight as f64 / total as f64).collect()
}

fn close(parts: &[f64], expected: &[f64]) -> bool {
    parts.iter().zip(expected).all(|(part, expected)| (part - expected).abs() < 1e-6)
}

#[test]
fn each_has_a_quarter_of_an_equal_part_and_the_rest_follows_demand() {
    let of = |demands: &[u64]| parts(&demands.iter().map(|demand| member(*demand, 0)).collect::<Vec<_>>());
    assert!(close(&of(&[5, 5, 5, 5]), &[0.25; 4]));
    assert!(close(&of(&[1, 1, 1, 1_000_000]), &[0.0625, 0.0625, 0.0625, 0.8125]));
    assert!(close(&of(&[30, 20, 50]), &[0.3, 0.2, 0.5]), "no member is below the floor");
    assert!(close(&of(&[u64::MAX, 0]), &[0.875, 0.125]), "of any demand");
}

#[test]
fn a_missing_member_keeps_what_it_held() {
    let missing = Member { is_live: false, ..member(7, WHOLE / 2) };
    assert!(close(&parts(&[missing.clone(), member(30, 0), member(10, 0)]), &[0.5, 0.375, 0.125]));
    // More than the whole: somebody is wrong, or lies.
    let wrong = Member { is_live: false, ..member(7, u64::MAX) };
    assert!(close(&parts(&[wrong.clone(), wrong, member(1, 0), member(1, 0)]), &[0.25; 4]));
}

fn view(members: &[(&str, Member)]) -> View {
    members.iter().map(|(name, member)| ((*name).to_owned(), member.clone())).collect()
}

fn holding(shares: &DemandShares) -> &Share {
    shares.held(&rule())
}

fn held(shares: &DemandShares) -> u64 {
    of_whole(holding(shares))
}

#[test]
fn a_smaller_share_applies_at_once_and_a_larger_one_in_a_quiet_view() {
    let mut shares = DemandShares::new("a".into(), patience(1));
    let of = |own, other| view(&[("a", member(own, 0)), ("b", member(other, 0))]);
    assert_eq!(shares.update(of(1, 1), 0), None, "who joins has to have seen the fleet");
    assert_eq!(shares.update(of(1, 1), 1), None);
    assert!(shares.update(of(1, 1), 2).is_some());
    assert_eq!(held(&shares), WHOLE / 2);
    assert!(shares.update(of(1, 3), 3).is_some(), "smaller");
    assert_eq!(held(&shares), WHOLE / 4);
    assert_eq!(shares.update(of(1, 1), 4), None, "larger");
    // What it is about to have is said before it has it.
    assert_eq!(shares.claims(&BTreeMap::new(), &BTreeMap::new())[&rule()], claim(1, WHOLE / 2));
    assert_eq!(shares.update(of(1, 1), 5), None);
    assert!(shares.update(of(1, 1), 6).is_some());
    assert_eq!(held(&shares), WHOLE / 2);
}

#[test]
fn who_sees_nobody_has_an_equal_part_of_those_it_knew() {
    let mut shares = DemandShares::new("a".into(), patience(4));
    for step in 0..9 {
        assert_eq!(shares.update(view(&[("a", member(9, 0))]), step), None, "others may answer yet");
    }
    shares.update(view(&[("a", member(9, 0))]), 10);
    assert_eq!(held(&shares), WHOLE / 4, "of as many as there are seeds");
    let missing = |demand| Member { is_live: false, ..member(demand, WHOLE / 2) };
    let all = || view(&[("a", member(9, 0)), ("b", missing(900)), ("c", missing(1))]);
    for step in 11..100 {
        shares.update(all(), step);
    }
    assert!(held(&shares).abs_diff(WHOLE / 3) < 3, "also after the time in which most would forget a few");
}

#[test]
fn no_more_keys_than_the_most_have_shares_of_their_own_and_none_is_forgotten() {
    let mut shares = DemandShares::new("a".into(), patience(1));
    let key = |number| Subject { key: Some(number), ..rule() };
    let wants = |numbers: std::ops::Range<u64>| {
        let wanted = Claim { is_wanted: true, ..claim(0, 0) };
        let claims = numbers.map(|number| (key(number), wanted)).chain([(rule(), claim(1, 0))]);
        view(&[("a", member(1, 0)), ("b", Member { is_live: true, claims: Arc::new(claims.collect()) })])
    };
    let most = MAX_KEYS as u64;
    shares.update(wants(0..most - 1), 0);
    shares.update(wants(most..most + 3), 1);
    assert_eq!(shares.wanted().map(|(key, _)| key.clone()).collect::<Vec<_>>(), [key(most)]);
    assert!(shares.in_force.contains_key(&key(0)) && !shares.in_force.contains_key(&key(most + 1)));
    shares.update(wants(0..1), 2);
    assert_eq!(shares.wanted().count(), 1);
}

/// What is known of each instance: a version, what it says (nothing once it has left), and
/// when that was news.
type Known = BTreeMap<String, (u64, Option<Member>, u64)>;

/// One instance, and what it knows of each.
struct Node {
    shares: DemandShares,
    demand: u64,
    of_key: u64,
    wants: bool,
    /// Whether it has seen that the key is wanted, and measured it since.
    is_measured: bool,
    known: Known,
}

/// Messages are what their sender knew, with the step in which they arrive.
struct World {
    now: u64,
    nodes: BTreeMap<String, Node>,
    late: Vec<(u64, String, Known)>,
    sides: BTreeMap<String, bool>,
    random: u64,
    loss: u64,
}

impl World {
    fn of(count: u8, random: u64) -> Self {
        let (nodes, late, sides) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let mut world = Self { now: 0, nodes, late, sides, random: random | 1, loss: 0 };
        (0..count).for_each(|index| world.start(index));
        world
    }

    fn chance(&mut self, of: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % of
    }

    fn start(&mut self, index: u8) {
        let name = format!("node-{index}");
        let shares = DemandShares::new(name.clone(), patience(8));
        let node = Node { shares, demand: 1, of_key: 1, wants: false, is_measured: false, known: BTreeMap::new() };
        self.nodes.insert(name, node);
    }

    /// One gossip interval: all say what they know to two others, and follow their view.
    fn step(&mut self) {
        self.now += 1;
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in &names {
            let node = self.nodes.get_mut(name).unwrap();
            let claims = node.claims();
            // Versions of a later start are later.
            node.known
                .insert(name.clone(), (self.now, Some(Member { is_live: true, claims: Arc::new(claims) }), self.now));
            let side = self.sides.get(name);
            let reached = |other: &&String| *other != name && self.sides.get(*other) == side;
            let reached: Vec<String> = names.iter().filter(reached).cloned().collect();
            for _ in 0..2.min(reached.len()) {
                let other = reached[self.chance(reached.len() as u64) as usize].clone();
                if self.chance(100) >= self.loss {
                    let delay = if self.loss > 0 { self.chance(3) } else { 0 };
                    self.late.push((self.now + delay, other, self.nodes[name].known.clone()));
                }
            }
        }
        let now = self.now;
        let (due, late) = std::mem::take(&mut self.late).into_iter().partition(|(at, ..)| *at <= now);
        self.late = late;
        for (_, to, message) in due {
            let Some(node) = self.nodes.get_mut(&to) else { continue };
            for (name, (version, said, _)) in message {
                let known = node.known.entry(name).or_insert((0, None, now));
                if version > known.0 {
                    *known = (version, said, now);
                }
            }
        }
        for node in self.nodes.values_mut() {
            let view = node.view(now);
            node.shares.update(view, now);
        }
    }

    fn steps(&mut self, count: u64) {
        (0..count).for_each(|_| self.step());
    }

    fn leave(&mut self, name: &str) {
        let now = self.now;
        self.nodes.remove(name);
        for node in self.nodes.values_mut() {
            node.known.insert(name.to_owned(), (now + 1, None, now));
        }
    }

    fn held(&self) -> u64 {
        self.nodes.values().map(|node| held(&node.shares)).sum()
    }

    fn held_of_key(&self) -> u64 {
        self.nodes.values().map(|node| of_whole(node.shares.held(&key()))).sum()
    }

    /// What all may have of a key at most, as views differ, by who has a place in each.
    fn bound_of_key(&mut self) -> f64 {
        let now = self.now;
        let places: Vec<View> = self.nodes.values_mut().map(|node| node.shares.places(node.view(now), now)).collect();
        let parts = |(node, places): (&Node, &View)| -> BTreeMap<String, f64> {
            let subject = if node.shares.wanted.contains(&key()) { key() } else { rule() };
            let weights = weights(&places.values().collect::<Vec<_>>(), &subject);
            let total = weights.iter().sum::<u64>() as f64;
            places.keys().cloned().zip(weights.into_iter().map(|weight| weight as f64 / total)).collect()
        };
        let parts: Vec<_> = self.nodes.values().zip(&places).map(parts).collect();
        let (mut differ, mut unseen) = (1.0_f64, 0.0);
        for (name, node) in &self.nodes {
            if places.iter().all(|places| places.get(name).is_some_and(|member| member.is_live)) {
                let of_each = || parts.iter().map(|parts| parts[name]);
                differ = differ.max(of_each().fold(0.0, f64::max) / of_each().fold(1.0, f64::min));
            } else {
                unseen += of_whole(node.shares.held(&key())) as f64;
            }
        }
        WHOLE as f64 * differ + unseen + self.nodes.len() as f64 * 4.0
    }

    /// Whether it does soon: by chance, one may just be out of sight of another.
    fn comes_to(&mut self, state: impl Fn(&Self) -> bool) -> bool {
        (0..200).any(|_| {
            self.step();
            state(self)
        })
    }

    fn divide_the_whole(&self) -> bool {
        let holdings = || self.nodes.values().map(|node| holding(&node.shares));
        let sum: u64 = holdings().map(|holding| holding.weight).sum();
        holdings().all(|holding| holding.total == sum)
    }

    /// Whether all see all others, and the same of each.
    fn agree(&self) -> bool {
        let mut views = self.nodes.values().map(|node| node.view(self.now));
        let first = views.next().unwrap_or_default();
        first.values().all(|member| member.is_live) && views.all(|view| view == first)
    }

    /// What all may have together at most, as views differ.
    fn bound(&self) -> f64 {
        let views: Vec<View> = self.nodes.values().map(|node| node.view(self.now)).collect();
        let is_live = |view: &View, name: &String| view.get(name).is_some_and(|member| member.is_live);
        let (mut differ, mut unseen) = (1.0_f64, 0.0);
        for (name, node) in &self.nodes {
            if !views.iter().all(|view| is_live(view, name)) {
                unseen += held(&node.shares) as f64;
                continue;
            }
            let demand = |view: &View| view[name].claims.get(&rule()).map_or(1, |claim| claim.demand) as f64;
            let (least, most) =
                views.iter().map(demand).fold((f64::MAX, 0.0_f64), |(least, most), at| (least.min(at), most.max(at)));
            differ = differ.max(most / least);
        }
        WHOLE as f64 * differ + unseen + self.nodes.len() as f64 * 4.0
    }
}

impl Node {
    fn claims(&mut self) -> Claims {
        let is_wanted = self.shares.wanted().count() > 0;
        let measured = (self.is_measured && is_wanted).then_some((key(), self.of_key));
        self.is_measured = is_wanted;
        let wants = self.wants.then_some((key(), 1)).into_iter().collect();
        self.shares.claims(&measured.into_iter().chain([(rule(), self.demand)]).collect(), &wants)
    }

    fn view(&self, now: u64) -> View {
        let known = self.known.iter().filter_map(|(name, (_, said, news))| Some((name, said.as_ref()?, news)));
        let member = |said: &Member, news: u64| Member { is_live: now - news < MISSING_AFTER, ..said.clone() };
        known.map(|(name, said, news)| (name.clone(), member(said, *news))).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Demand(u8, u64),
    OfKey(u8, u64),
    Want(u8, bool),
    Start(u8),
    Kill(u8),
    Leave(u8),
    /// Each of these is cut off from the others.
    Cut(u8),
    Loss(u64),
    Quiet(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let demand = prop_oneof![1 => Just(1), 3 => 1u64..1_000, 1 => 1u64..1_000_000];
    prop_oneof![
        4 => (0u8..6, demand.clone()).prop_map(|(node, demand)| Event::Demand(node, demand)),
        4 => (0u8..6, demand).prop_map(|(node, demand)| Event::OfKey(node, demand)),
        2 => (0u8..6, any::<bool>()).prop_map(|(node, wants)| Event::Want(node, wants)),
        1 => (0u8..8).prop_map(Event::Start),
        1 => (1u8..8).prop_map(Event::Kill),
        1 => (1u8..8).prop_map(Event::Leave),
        1 => any::<u8>().prop_map(Event::Cut),
        1 => (0u64..60).prop_map(Event::Loss),
        3 => (1u64..40).prop_map(Event::Quiet),
    ]
}

fn event_of_demand() -> impl Strategy<Value = Event> {
    let demand = || prop_oneof![1 => Just(1), 3 => 1u64..1_000];
    prop_oneof![
        4 => (0u8..6, demand()).prop_map(|(node, demand)| Event::Demand(node, demand)),
        4 => (0u8..6, demand()).prop_map(|(node, demand)| Event::OfKey(node, demand)),
        2 => (0u8..6, any::<bool>()).prop_map(|(node, wants)| Event::Want(node, wants)),
        3 => (1u64..40).prop_map(Event::Quiet),
    ]
}

impl World {
    fn apply(&mut self, event: Event) -> u64 {
        let name = |index| format!("node-{index}");
        match event {
            Event::Demand(index, demand) => {
                if let Some(node) = self.nodes.get_mut(&name(index)) {
                    node.demand = demand;
                }
            }
            Event::OfKey(index, demand) => {
                if let Some(node) = self.nodes.get_mut(&name(index)) {
                    node.of_key = demand;
                }
            }
            Event::Want(index, wants) => {
                if let Some(node) = self.nodes.get_mut(&name(index)) {
                    node.wants = wants;
                }
            }
            Event::Start(index) => self.start(index),
            Event::Kill(index) => drop(self.nodes.remove(&name(index))),
            Event::Leave(index) => self.leave(&name(index)),
            Event::Cut(sides) => {
                self.sides = (0..8).map(|index| (name(index), sides >> index & 1 == 1)).collect();
            }
            Event::Loss(loss) => self.loss = loss,
            Event::Quiet(steps) => return steps,
        }
        1
    }

    /// Nothing is lost or cut off, and the killed are forgotten.
    fn settle(&mut self) {
        (self.loss, self.sides) = (0, BTreeMap::new());
        self.steps(150);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Whatever happens, all shares together stay within the bound; and when it is
    /// over, they are the whole.
    #[test]
    fn shares_stay_within_the_bound(events in prop::collection::vec(event(), 1..40), random in any::<u64>()) {
        let mut world = World::of(5, random);
        for event in events {
            for _ in 0..world.apply(event) {
                world.step();
                prop_assert!(world.held() as f64 <= world.bound(), "{event:?}: {} of {}", world.held(), world.bound());
                let (held, bound) = (world.held_of_key(), world.bound_of_key());
                prop_assert!(held as f64 <= bound, "{event:?}: {held} of {bound} of the key");
            }
        }
        world.settle();
        let view = world.nodes.values().next().map(|node| node.view(world.now)).unwrap_or_default();
        let live = view.values().filter(|member| member.is_live).count();
        if live > 1 && live * 2 > view.len() {
            prop_assert!(world.comes_to(World::divide_the_whole), "all divide alike, and no part is left over");
        }
    }

    /// Where nothing is lost, no instance takes more before the others have less.
    #[test]
    fn who_has_more_waits_for_those_who_have_less(
        events in prop::collection::vec(event_of_demand(), 1..60), random in any::<u64>(),
    ) {
        let mut world = World::of(6, random);
        world.steps(40);
        for event in events {
            for _ in 0..world.apply(event) {
                world.step();
                prop_assert!(world.held() <= WHOLE + 6, "{event:?}: {}", world.held());
                prop_assert!(world.held_of_key() <= WHOLE + 6, "{event:?}: {} of the key", world.held_of_key());
            }
        }
        world.settle();
        prop_assert!(world.comes_to(|world| world.held_of_key().abs_diff(WHOLE) <= WHOLE / 1_000), "{}", world.held_of_key());
    }

    /// Until a side forgets the other, both together keep what they agreed on, however
    /// demand moves on each.
    #[test]
    fn a_partition_keeps_what_was_agreed(
        demands in prop::collection::vec(1u64..1_000, 6), moved in prop::collection::vec(1u64..1_000, 6),
        sides in 0u8..64, random in any::<u64>(),
    ) {
        // An instance that is alone has an equal part instead.
        prop_assume!((2..=4).contains(&sides.count_ones()));
        let mut world = World::of(6, random);
        for (index, demand) in (0..).zip(demands) {
            world.apply(Event::Demand(index, demand));
        }
        world.steps(60);
        prop_assert!(world.comes_to(World::agree) && world.held() <= WHOLE + 6);
        world.apply(Event::Cut(sides));
        world.steps(MISSING_AFTER + 6);
        for (index, demand) in (0..).zip(moved) {
            world.apply(Event::Demand(index, demand));
        }
        world.steps(FORGET_AFTER - MISSING_AFTER - 8);
        prop_assert!(world.held() <= WHOLE + 6, "{}", world.held());
        prop_assert!(world.held() >= WHOLE - WHOLE / 1_000, "{}", world.held());
    }
}
