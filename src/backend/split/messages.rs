//! What members say of themselves: one value for each rule and key that they claim.
//!
//! It is read and written here, and understood in `by_demand.rs`. The invariant: what
//! cannot be read is as if it had not been said.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use chitchat::{Chitchat, ChitchatId, NodeState};

use super::{
    by_demand::{Claim, Claims, Member, View},
    rule_shares::Subject,
};

/// What a member says of a rule has the rule's id behind this; of a key, its number and the
/// rule's id behind the other.
const RULE: &str = "rule:";
const KEY: &str = "key:";
/// Set by a member that leaves.
pub(super) const LEFT: &str = "left";

/// Says what this instance claims, and nothing else any more.
pub(super) fn publish(own: &mut NodeState, claims: &Claims) {
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
pub(super) struct Said(HashMap<String, (u64, u64, Arc<Claims>)>);

impl Said {
    /// The fleet as seen here, and the sum of the others' heartbeats.
    pub(super) fn view(&mut self, chitchat: &Chitchat, claims: &Arc<Claims>) -> (View, u64) {
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
            Some((generation, version, claims)) if (*generation, *version) == said => Arc::clone(claims),
            _ => {
                let claims = Arc::new(claims_of(state));
                self.0.insert(id.node_id.to_string(), (said.0, said.1, Arc::clone(&claims)));
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
