//! Whether a store still is the one that counted.

use std::collections::BTreeMap;

/// What a store's memory is known by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch {
    /// The id that the memory itself holds.
    pub(super) id: Option<String>,
    /// When somebody had looked last before this, and when this was: in
    /// microseconds of the server's clock, as the memory itself holds it.
    pub(super) seen: Option<(u64, u64)>,
    /// By address: the process that holds a part of it. A restart or a failover
    /// brings another, and may have lost the last writes. Empty where we may
    /// not ask, and where there is one server.
    pub(super) processes: BTreeMap<String, String>,
}

impl Epoch {
    /// Takes what was seen now. Returns what was lost since, if anything.
    pub(super) fn observe(&mut self, now: Self) -> Option<&'static str> {
        let other =
            |(address, process): (&String, &String)| self.processes.get(address).is_some_and(|known| known != process);
        let restarted = now.processes.iter().any(other);
        let known = |address: &String| self.processes.contains_key(address);
        let newcomer = !self.processes.is_empty() && now.processes.keys().any(|address| !known(address));
        let missing = self.processes.keys().any(|address| !now.processes.contains_key(address));
        let known_then = self.seen.map_or(0, |(_, seen)| seen);
        if now.id == self.id && now.seen.is_some_and(|(_, seen)| seen < known_then) {
            // Two looked at once, and this is the earlier one.
            return None;
        }
        let went_back = now.seen.is_some_and(|(before, _)| before < known_then);
        let lost = match (&self.id, &now.id) {
            (Some(then), Some(now)) if then != now => Some("the memory is another: emptied, or restarted without it"),
            _ if went_back => Some("the memory is an older one: restarted from a snapshot, or a replica that lagged"),
            _ if restarted => Some("a server was restarted, or another took its address"),
            // Alone, one that is missing is out of reach, and a newcomer took
            // slots over together with what they hold.
            _ if newcomer && missing && !now.processes.is_empty() => Some("a server took another's place"),
            _ => None,
        };
        if now.id.is_some() {
            self.id = now.id;
            self.seen = now.seen;
        }
        if newcomer && missing {
            self.processes = now.processes;
        } else {
            self.processes.extend(now.processes);
        }
        lost
    }
}

/// What the script says of the memory, in three parts.
pub(super) fn parse(answer: &str) -> Option<(String, (u64, u64))> {
    let (id, times) = answer.split_once(':')?;
    let (before, seen) = times.split_once(':')?;
    Some((id.into(), (before.parse().ok()?, seen.parse().ok()?)))
}

/// The id of the process, out of `INFO server`.
pub(super) fn run_id(info: &str) -> Option<&str> {
    info.lines().find_map(|line| line.strip_prefix("run_id:")).map(str::trim).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(id: Option<&str>, processes: &[(&str, &str)]) -> Epoch {
        let processes = processes.iter().map(|&(address, id)| (address.to_owned(), id.to_owned())).collect();
        Epoch { id: id.map(str::to_owned), seen: None, processes }
    }

    /// Whether something is lost between the last two.
    fn loses(seen: &[Epoch]) -> bool {
        let mut known = Epoch::default();
        seen.iter().map(|now| known.observe(now.clone()).is_some()).last().unwrap()
    }

    #[test]
    fn the_first_look_and_the_same_again_lose_nothing() {
        let seen = epoch(Some("a"), &[("one", "1"), ("two", "2")]);
        assert!(!loses(std::slice::from_ref(&seen)));
        assert!(!loses(&[seen.clone(), seen]));
    }

    #[test]
    fn another_memory_or_another_process_does() {
        let first = epoch(Some("a"), &[("one", "1"), ("two", "2")]);
        assert!(loses(&[first.clone(), epoch(Some("b"), &[("one", "1"), ("two", "2")])]));
        assert!(loses(&[first.clone(), epoch(Some("a"), &[("one", "1"), ("two", "3")])]));
        assert!(loses(&[first.clone(), epoch(Some("a"), &[("one", "1"), ("three", "3")])]), "a failover");
        assert!(loses(&[epoch(Some("a"), &[]), epoch(Some("b"), &[])]), "without the right to ask for processes");
    }

    #[test]
    fn who_is_out_of_reach_or_new_has_lost_nothing() {
        let first = epoch(Some("a"), &[("one", "1"), ("two", "2")]);
        let without = epoch(Some("a"), &[("one", "1")]);
        assert!(!loses(&[first.clone(), without.clone()]));
        assert!(!loses(&[first.clone(), without.clone(), first.clone()]));
        assert!(!loses(&[without, first.clone()]), "one that was added");
        assert!(!loses(&[first.clone(), epoch(None, &[])]), "no answer");
        assert!(!loses(&[epoch(Some("a"), &[]), first]), "the right to ask was given");
    }

    #[test]
    fn a_loss_is_noticed_over_a_gap_and_once() {
        let first = epoch(Some("a"), &[("one", "1"), ("two", "2")]);
        let gap = epoch(None, &[("one", "1")]);
        let other = epoch(Some("a"), &[("one", "1"), ("two", "3")]);
        assert!(loses(&[first.clone(), gap.clone(), other.clone()]));
        assert!(loses(&[first.clone(), gap, epoch(Some("b"), &[])]));
        assert!(!loses(&[first, other.clone(), other]));
    }

    #[test]
    fn a_memory_that_is_older_than_it_was_has_lost_something() {
        let seen = |before, now| Epoch { seen: Some((before, now)), ..epoch(Some("a"), &[]) };
        assert!(!loses(&[seen(0, 5), seen(5, 9), seen(9, 12)]));
        assert!(!loses(&[seen(0, 5), seen(7, 9)]), "others have looked meanwhile");
        assert!(loses(&[seen(0, 5), seen(5, 9), seen(5, 12)]), "what was written at 9 is gone");
        assert!(!loses(&[seen(0, 9), seen(5, 12), seen(12, 15)]), "and that is told once");
        assert_eq!(parse("ab:5:9"), Some(("ab".into(), (5, 9))));
        assert!(["", "ab", "ab:5", "ab:x:9", "ab:5:-1"].iter().all(|answer| parse(answer).is_none()));
    }

    #[test]
    fn a_run_id_is_found() {
        assert_eq!(run_id("# Server\r\nredis_version:7.0\r\nrun_id:abc\r\ntcp_port:1\r\n"), Some("abc"));
        assert_eq!(run_id("# Server\r\nrun_id:\r\n"), None);
        assert_eq!(run_id(""), None);
    }
}
