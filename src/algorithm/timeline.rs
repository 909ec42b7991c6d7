use super::Portion;

/// How many changes are remembered, one after the other. States and windows
/// that are older than that count as if they had been there at the first.
const REMEMBERED: usize = 32;

/// The portions that an instance has had, and the one in force.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    past: Vec<Entry>,
    current: Entry,
}

/// A portion, and from when on it was in force.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) since: u64,
    /// Counts the changes.
    pub(crate) epoch: u64,
    pub(crate) portion: Portion,
}

impl Timeline {
    /// It was never another.
    pub(crate) fn new(portion: Portion) -> Self {
        Self { past: Vec::new(), current: Entry { since: 0, epoch: 0, portion } }
    }

    /// From `now` on it is another; unless it is the same.
    pub(crate) fn change(&mut self, portion: Portion, now: u64) -> bool {
        if portion == self.current.portion {
            return false;
        }
        let (since, epoch) = (self.current.since.max(now), self.current.epoch + 1);
        self.past.push(std::mem::replace(&mut self.current, Entry { since, epoch, portion }));
        if self.past.len() >= REMEMBERED {
            self.past.remove(0);
        }
        true
    }

    /// The clock is at `now` again: what was changed later was changed now.
    pub(crate) fn step_back(&mut self, now: u64) {
        for entry in self.past.iter_mut().chain([&mut self.current]) {
            entry.since = entry.since.min(now);
        }
    }

    pub(crate) fn current(&self) -> &Entry {
        &self.current
    }

    /// Those before, in order.
    pub(crate) fn past(&self) -> &[Entry] {
        &self.past
    }

    /// The least that `part` makes of any portion that was in force within
    /// `length` before `now`, and until when that may hold.
    pub(crate) fn least(&self, now: u64, length: u64, part: impl Fn(&Portion) -> u64) -> (u64, u64) {
        let entries = || self.past.iter().chain([&self.current]);
        let parts = entries().map(|entry| part(&entry.portion));
        let ends = entries().skip(1).map(|entry| entry.since.saturating_add(length)).chain([u64::MAX]);
        let lives = parts.zip(ends).filter(|(_, end)| *end > now);
        lives.fold(
            (u64::MAX, u64::MAX),
            |(least, until), (part, end)| {
                if part <= least { (part, end) } else { (least, until) }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_raised_counts_once_a_window_has_passed() {
        let mut timeline = Timeline::new(Portion::equal(0, 4));
        assert!(!timeline.change(Portion::equal(0, 4), 5), "the same");
        assert!(timeline.change(Portion::equal(0, 2), 100));
        let least = |timeline: &Timeline, now| timeline.least(now, 10, |portion| portion.fixed(100));
        assert_eq!(least(&timeline, 109), (25, 110));
        assert_eq!(least(&timeline, 110), (50, u64::MAX));
        assert!(timeline.change(Portion::equal(0, 10), 120));
        assert_eq!(least(&timeline, 121), (10, u64::MAX));
        for count in 1..100 {
            timeline.change(Portion::equal(0, count), 120);
        }
        assert_eq!(timeline.past().len() + 1, REMEMBERED);
    }
}
