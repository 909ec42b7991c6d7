//! What is published, when, and how much of it is kept.

use super::super::*;

const SECOND: Duration = Duration::from_secs(1);

fn taken(outbox: &mut Outbox, now: Instant) -> Vec<(String, Duration)> {
    outbox.take(10, now).into_iter().map(|(key, end)| (key.to_string(), end - now)).collect()
}

#[test]
fn a_cooldown_is_published_once_and_again_only_if_longer() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    assert!(outbox.put("a".into(), now + SECOND * 2, now));
    outbox.put("a".into(), now + SECOND, now);
    assert!(outbox.put("a".into(), now + SECOND * 3, now));
    let batch = outbox.take(10, now);
    assert_eq!(batch, [("a".into(), now + SECOND * 3)], "in one");
    assert!(!outbox.put("a".into(), now + SECOND * 3 + TOLERANCE, now));
    assert!(outbox.put("a".into(), now + SECOND * 4, now));
    assert_eq!(taken(&mut outbox, now), [("a".to_owned(), SECOND * 4)]);
    assert_eq!(taken(&mut outbox, now), []);
}

#[test]
fn an_unpublished_cooldown_is_retried_until_it_ends() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    outbox.put("a".into(), now + SECOND, now);
    outbox.put("b".into(), now + SECOND * 3, now);
    let batch = outbox.take(10, now);
    outbox.put("b".into(), now + SECOND * 2, now);
    outbox.put_back(batch);
    let later = now + SECOND;
    assert_eq!(taken(&mut outbox, later), [("b".to_owned(), SECOND * 2)]);
}

#[test]
fn it_is_bounded() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    let all = (0..MAX_KNOWN + 10).filter(|nth| outbox.put(nth.to_string(), now + SECOND, now)).count();
    assert_eq!(all, MAX_KNOWN);
    assert_eq!(outbox.take(64, now).len(), 64);
    outbox.take(MAX_KNOWN, now);
    (0..100).for_each(|nth| assert!(outbox.put(format!("more {nth}"), now + SECOND, now), "published are forgotten"));
    assert!(outbox.0.len() <= MAX_KNOWN);
    let later = now + SECOND;
    for nth in 0..MAX_KNOWN + 10 {
        outbox.put(format!("other {nth}"), later + SECOND, later);
    }
    assert_eq!(outbox.0.len(), MAX_KNOWN);
}
