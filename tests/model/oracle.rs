//! Each algorithm by its definition, in the plainest way: a log of all
//! admissions, and sums over it. It shares no code with the crate.

use tower_ratelimit::{Algorithm, Quota};

/// A quota and all its admissions: (time, units).
pub(crate) struct Oracle {
    algorithm: Algorithm,
    limit: u128,
    window: u128,
    burst: u128,
    admitted: Vec<(u64, u64)>,
}

impl Oracle {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            algorithm: quota.counted_by(),
            limit: quota.limit().into(),
            window: quota.window().as_nanos(),
            burst: quota.explicit_burst().unwrap_or(quota.limit()).into(),
            admitted: Vec::new(),
        }
    }

    /// Whether `cost` conforms at `now`, by definition.
    pub(crate) fn conforms(&self, now: u64, cost: u64) -> bool {
        let cost = u128::from(cost);
        if !self.ever_conforms(cost) {
            return false;
        }
        match self.algorithm {
            // Tokens are counted in parts: `window` parts to one.
            Algorithm::TokenBucket => cost * self.window <= self.token_parts(now),
            // What went last has to be through: c units take c x W/L.
            Algorithm::LeakyBucket => self
                .admitted
                .iter()
                .all(|&(at, units)| u128::from(now - at) * self.limit >= u128::from(units) * self.window),
            _ => cost * self.window <= (self.limit * self.window).saturating_sub(self.counted_parts(now)),
        }
    }

    fn ever_conforms(&self, cost: u128) -> bool {
        let capacity = match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.burst,
            _ => self.limit,
        };
        self.limit > 0 && cost <= capacity
    }

    /// The bucket's level, computed from full through all admissions.
    fn token_parts(&self, now: u64) -> u128 {
        let full = self.burst * self.window;
        let (mut level, mut last) = (full, 0);
        for &(at, units) in &self.admitted {
            level = full.min(level + self.limit * u128::from(at - last));
            level -= u128::from(units) * self.window;
            last = at;
        }
        full.min(level + self.limit * u128::from(now - last))
    }

    /// What a window counts at `now`, in parts.
    fn counted_parts(&self, now: u64) -> u128 {
        let now = u128::from(now);
        let sum = |from: u128, to: u128| -> u128 {
            units_of(self.admitted.iter().filter(|(at, _)| (from..to).contains(&u128::from(*at))))
        };
        let start = now - now % self.window;
        match self.algorithm {
            Algorithm::FixedWindow => sum(start, now + 1) * self.window,
            Algorithm::AnchoredWindow => match self.opened(now) {
                Some(start) => sum(start, now + 1) * self.window,
                None => 0,
            },
            Algorithm::SlidingWindow => {
                let covered = start + self.window - now;
                sum(start.saturating_sub(self.window), start) * covered + sum(start, now + 1) * self.window
            }
            Algorithm::SlidingLog => sum((now + 1).saturating_sub(self.window), now + 1) * self.window,
            other => panic!("{other} counts no window"),
        }
    }

    /// When the window that is open at `now` was opened by its first request.
    fn opened(&self, now: u128) -> Option<u128> {
        let mut opened: Option<u128> = None;
        for at in self.admitted.iter().map(|(at, _)| u128::from(*at)) {
            if opened.is_none_or(|start| at >= start + self.window) {
                opened = Some(at);
            }
        }
        opened.filter(|start| now < start + self.window)
    }

    /// The first time from `now` on at which `cost` conforms. A cost that conforms
    /// also conforms later, so bisection finds it.
    pub(crate) fn earliest(&self, now: u64, cost: u64) -> Option<u64> {
        if !self.ever_conforms(cost.into()) {
            return None;
        }
        let mut not_yet = match self.conforms(now, cost) {
            true => return Some(now),
            false => now,
        };
        let mut conforms = now;
        let mut step = 1;
        while !self.conforms(conforms, cost) {
            not_yet = conforms;
            conforms += step;
            step *= 2;
        }
        while conforms - not_yet > 1 {
            let middle = not_yet + (conforms - not_yet) / 2;
            if self.conforms(middle, cost) { conforms = middle } else { not_yet = middle }
        }
        Some(conforms)
    }

    pub(crate) fn admit(&mut self, now: u64, cost: u64) {
        if cost > 0 {
            self.admitted.push((now, cost));
        }
    }

    /// The most units that conform at once: one or none for a leaky bucket, whose
    /// departures are spaced.
    pub(crate) fn remaining(&self, now: u64) -> u64 {
        match self.algorithm {
            Algorithm::LeakyBucket => u64::from(self.conforms(now, 1)),
            Algorithm::TokenBucket if self.limit == 0 => 0,
            Algorithm::TokenBucket => (self.token_parts(now) / self.window) as u64,
            _ => ((self.limit * self.window).saturating_sub(self.counted_parts(now)) / self.window) as u64,
        }
    }

    /// Until all has come back; for windows, until the window's end.
    pub(crate) fn reset(&self, now: u64) -> u64 {
        let at = u128::from(now);
        let rest_of_aligned = (self.window - at % self.window) as u64;
        match self.algorithm {
            Algorithm::TokenBucket if self.limit == 0 => 0,
            Algorithm::TokenBucket => (self.burst * self.window - self.token_parts(now)).div_ceil(self.limit) as u64,
            Algorithm::LeakyBucket => self.earliest(now, 0).map_or(0, |free| free - now),
            Algorithm::FixedWindow | Algorithm::SlidingWindow => rest_of_aligned,
            Algorithm::AnchoredWindow => self.opened(at).map_or(0, |start| (start + self.window - at) as u64),
            _ => {
                self.admitted.last().map_or(0, |(last, _)| (u128::from(*last) + self.window).saturating_sub(at) as u64)
            }
        }
    }

    /// Checks the algorithm's documented bound over every interval of the whole
    /// log. Returns where it is broken.
    pub(crate) fn broken_bound(&self) -> Option<String> {
        for (first, &(from, cost)) in self.admitted.iter().enumerate() {
            let opens = self.opened(from.into()) == Some(from.into());
            for last in first..self.admitted.len() {
                let (to, _) = self.admitted[last];
                let (time, sum) = (u128::from(to - from), units_of(&self.admitted[first..=last]));
                let same_window = u128::from(from) / self.window == u128::from(to) / self.window;
                let within = match self.algorithm {
                    Algorithm::TokenBucket => sum * self.window <= self.burst * self.window + self.limit * time,
                    Algorithm::LeakyBucket => last == first || time * self.limit >= u128::from(cost) * self.window,
                    Algorithm::FixedWindow => !same_window || sum <= self.limit,
                    Algorithm::AnchoredWindow => !opens || time >= self.window || sum <= self.limit,
                    Algorithm::SlidingWindow => {
                        let start = u128::from(to) / self.window * self.window;
                        let before = start.saturating_sub(self.window);
                        let within =
                            |from: u128, to: u128| move |(at, _): &&(u64, u64)| (from..to).contains(&u128::from(*at));
                        let so_far = &self.admitted[..=last];
                        let sum = |from, to| units_of(so_far.iter().filter(within(from, to)));
                        let left = start + self.window - u128::from(to);
                        sum(before, start) * left + sum(start, u128::MAX) * self.window <= self.limit * self.window
                    }
                    _ => time >= self.window || sum <= self.limit,
                };
                if !within {
                    return Some(format!("{:?}: {sum} units in {time} ns", self.algorithm));
                }
            }
        }
        None
    }

    /// How many were admitted.
    pub(crate) fn admissions(&self) -> usize {
        self.admitted.len()
    }
}

fn units_of<'a>(log: impl IntoIterator<Item = &'a (u64, u64)>) -> u128 {
    log.into_iter().map(|(_, units)| u128::from(*units)).sum()
}
