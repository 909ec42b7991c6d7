use super::super::*;

fn key(rule: &str, key: u64) -> Subject {
    Subject { rule: rule.to_owned(), key: Some(key) }
}

fn refused(units: impl IntoIterator<Item = (u64, u64)>) -> BTreeMap<Subject, u64> {
    units.into_iter().map(|(number, units)| (key("api", number), units)).collect()
}

/// The numbers of the keys that are wanted.
fn wanted(busy: &BusyKeys) -> Vec<u64> {
    busy.wanted.keys().filter_map(|subject| subject.key).collect()
}

#[test]
fn who_is_refused_much_is_wanted_until_its_demand_is_half() {
    let mut busy = BusyKeys::default();
    busy.follow(&refused([(1, 100), (2, FEWEST_REFUSED - 1)]), |_| 0, 6);
    assert_eq!(wanted(&busy), [1], "a few may be chance");
    busy.follow(&refused([]), |_| 0, 6);
    assert_eq!(wanted(&busy), [1], "not measured yet");
    busy.follow(&refused([]), |_| 500, 6);
    busy.follow(&refused([]), |_| 250, 6);
    assert_eq!(wanted(&busy), [1]);
    busy.follow(&refused([]), |_| 249, 6);
    assert!(busy.wanted.is_empty());
}

#[test]
fn the_busiest_are_wanted_and_others_need_twice_as_much() {
    let mut busy = BusyKeys::default();
    busy.follow(&refused((0..100).map(|number| (number, 100 + number))), |_| 0, 6);
    assert_eq!(wanted(&busy), (90..100).collect::<Vec<_>>(), "64 of a fleet of six");
    let demand = |key: &Subject| 100 + key.key.unwrap_or(0);
    busy.follow(&refused([(200, 382), (201, 380)]), demand, 6);
    assert_eq!(wanted(&busy), (91..100).chain([200]).collect::<Vec<_>>());
    busy.follow(&refused([]), demand, 96);
    assert_eq!(wanted(&busy), [200], "one in a large fleet");
}

#[test]
fn their_number_is_bounded_whatever_is_refused() {
    let mut busy = BusyKeys::default();
    let rules = (0..100).map(|rule| (key(&rule.to_string(), 1), u64::MAX));
    busy.follow(&rules.collect(), |_| u64::MAX, 0);
    assert_eq!(busy.wanted.len(), MAX_WANTED);
}
