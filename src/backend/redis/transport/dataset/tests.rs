//! Which changes of an epoch are a loss.

use super::*;

fn epoch(id: Option<&str>, processes: &[(&str, &str)]) -> DatasetId {
    let processes = processes.iter().map(|&(address, id)| (address.to_owned(), id.to_owned())).collect();
    DatasetId { id: id.map(str::to_owned), seen: None, latest: 0, processes }
}

/// Whether the last update is a loss.
fn loses(seen: &[DatasetId]) -> bool {
    let mut known = DatasetId::default();
    seen.iter().map(|now| known.update(now.clone()).is_some()).last().unwrap()
}

#[test]
fn an_unchanged_epoch_is_no_loss() {
    let seen = epoch(Some("a"), &[("one", "1"), ("two", "2")]);
    assert!(!loses(std::slice::from_ref(&seen)));
    assert!(!loses(&[seen.clone(), seen]));
}

#[test]
fn another_dataset_or_another_process_is_a_loss() {
    let first = epoch(Some("a"), &[("one", "1"), ("two", "2")]);
    assert!(loses(&[first.clone(), epoch(Some("b"), &[("one", "1"), ("two", "2")])]));
    assert!(loses(&[first.clone(), epoch(Some("a"), &[("one", "1"), ("two", "3")])]));
    assert!(loses(&[first.clone(), epoch(Some("a"), &[("one", "1"), ("three", "3")])]), "a failover");
    assert!(loses(&[epoch(Some("a"), &[]), epoch(Some("b"), &[])]), "without the right to ask for processes");
}

#[test]
fn an_unreachable_or_new_server_is_no_loss() {
    let first = epoch(Some("a"), &[("one", "1"), ("two", "2")]);
    let without = epoch(Some("a"), &[("one", "1")]);
    assert!(!loses(&[first.clone(), without.clone()]));
    assert!(!loses(&[first.clone(), without.clone(), first.clone()]));
    assert!(!loses(&[without, first.clone()]), "one that was added");
    assert!(!loses(&[first.clone(), epoch(None, &[])]), "no reply");
    assert!(!loses(&[epoch(Some("a"), &[]), first]), "the right to ask was given");
}

#[test]
fn a_loss_is_noticed_once_and_after_a_gap() {
    let first = epoch(Some("a"), &[("one", "1"), ("two", "2")]);
    let gap = epoch(None, &[("one", "1")]);
    let other = epoch(Some("a"), &[("one", "1"), ("two", "3")]);
    assert!(loses(&[first.clone(), gap.clone(), other.clone()]));
    assert!(loses(&[first.clone(), gap, epoch(Some("b"), &[])]));
    assert!(!loses(&[first, other.clone(), other]));
}

#[test]
fn a_dataset_that_goes_back_in_time_is_a_loss() {
    let seen = |before, now| DatasetId { seen: Some((before, now)), ..epoch(Some("a"), &[]) };
    assert!(!loses(&[seen(0, 5), seen(5, 9), seen(9, 12)]));
    assert!(!loses(&[seen(0, 5), seen(7, 9)]), "other instances have looked in between");
    assert!(loses(&[seen(0, 5), seen(5, 9), seen(5, 12)]), "the write at 9 is lost");
    assert!(!loses(&[seen(0, 9), seen(5, 12), seen(12, 15)]), "it is reported once");
}

#[test]
fn a_clock_that_was_set_back_is_behind_its_latest_time() {
    let read = parse("ab:5:9:9").unwrap();
    assert_eq!((read.id.as_deref(), read.seen, read.latest), (Some("ab"), Some((5, 9)), 0));
    assert_eq!(parse("ab:5000000:5000000:4000000").unwrap().latest, 0, "within the tolerance");
    assert_eq!(parse("ab:5000000:5000000:3999999").unwrap().latest, 5_000_000);
    assert!(["", "ab", "ab:5:9", "ab:x:9:9", "ab:5:-1:9", "ab:1:2:3:4"].iter().all(|reply| parse(reply).is_none()));
}
