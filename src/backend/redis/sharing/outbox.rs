use std::{collections::HashMap, sync::Arc, time::Duration};

use foldhash::fast::RandomState;
use tokio::time::Instant;

/// So many keys wait to be told of, and of so many it is known that they were.
const MOST: usize = 4_096;

/// What tells less than that is told already.
const SAME: Duration = Duration::from_millis(1);

type Ends = HashMap<Arc<str>, Instant, RandomState>;

/// Keys of which others are to be told, and until when they are held back.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Ends,
    told: Ends,
}

impl Outbox {
    /// Whether it is to be told: not where it was for as long already, and not
    /// where too much is waiting.
    pub(super) fn put(&mut self, key: String, end: Instant, now: Instant) -> bool {
        let key: Arc<str> = key.into();
        if self.told.get(&key).is_some_and(|told| end <= *told + SAME) {
            return false;
        }
        if let Some(waiting) = self.waiting.get_mut(&key) {
            *waiting = end.max(*waiting);
            return true;
        }
        make_room(&mut self.waiting, now) && self.waiting.insert(key, end).is_none()
    }

    /// Takes up to so many, and forgets those that are over.
    pub(super) fn take(&mut self, most: usize, now: Instant) -> Vec<(Arc<str>, Instant)> {
        self.waiting.retain(|_, end| *end > now);
        let keys: Vec<_> = self.waiting.keys().take(most).cloned().collect();
        keys.into_iter().filter_map(|key| self.waiting.remove_entry(&key)).collect()
    }

    /// They have been told.
    pub(super) fn told(&mut self, batch: Vec<(Arc<str>, Instant)>, now: Instant) {
        for (key, end) in batch {
            if self.told.contains_key(&key) || make_room(&mut self.told, now) {
                self.told.insert(key, end);
            }
        }
    }

    /// They have not.
    pub(super) fn put_back(&mut self, batch: Vec<(Arc<str>, Instant)>, now: Instant) {
        for (key, end) in batch {
            if let Some(waiting) = self.waiting.get_mut(&key) {
                *waiting = end.max(*waiting);
            } else if make_room(&mut self.waiting, now) {
                self.waiting.insert(key, end);
            }
        }
    }
}

fn make_room(ends: &mut Ends, now: Instant) -> bool {
    if ends.len() >= MOST {
        ends.retain(|_, end| *end > now);
    }
    ends.len() < MOST
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn taken(outbox: &mut Outbox, now: Instant) -> Vec<(String, Duration)> {
        outbox.take(10, now).into_iter().map(|(key, end)| (key.to_string(), end - now)).collect()
    }

    #[test]
    fn a_key_is_told_once_and_again_for_longer_only() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        assert!(outbox.put("a".into(), now + SECOND * 2, now));
        outbox.put("a".into(), now + SECOND, now);
        assert!(outbox.put("a".into(), now + SECOND * 3, now));
        let batch = outbox.take(10, now);
        assert_eq!(batch, [("a".into(), now + SECOND * 3)], "in one");
        outbox.told(batch, now);
        assert!(!outbox.put("a".into(), now + SECOND * 3 + SAME, now));
        assert!(outbox.put("a".into(), now + SECOND * 4, now));
        assert_eq!(taken(&mut outbox, now), [("a".to_owned(), SECOND * 4)]);
        assert_eq!(taken(&mut outbox, now), []);
    }

    #[test]
    fn what_was_not_told_is_told_later_unless_it_is_over() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        outbox.put("a".into(), now + SECOND, now);
        outbox.put("b".into(), now + SECOND * 3, now);
        let batch = outbox.take(10, now);
        outbox.put("b".into(), now + SECOND * 2, now);
        outbox.put_back(batch, now);
        let later = now + SECOND;
        assert_eq!(taken(&mut outbox, later), [("b".to_owned(), SECOND * 2)]);
    }

    #[test]
    fn both_are_bounded() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        let all = (0..MOST + 10).filter(|nth| outbox.put(nth.to_string(), now + SECOND, now)).count();
        assert_eq!(all, MOST);
        assert_eq!(outbox.take(64, now).len(), 64);
        let batch = outbox.take(MOST, now);
        outbox.told(batch, now);
        outbox.told(vec![("more".into(), now + SECOND); 100], now);
        assert!(outbox.told.len() <= MOST);
        let later = now + SECOND;
        for nth in 0..MOST + 10 {
            outbox.put(format!("other {nth}"), later + SECOND, later);
        }
        assert_eq!(outbox.waiting.len(), MOST);
    }
}
