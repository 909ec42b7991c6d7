//! The algorithms that the tests of guarantees run with.

use tower_ratelimit::Algorithm;

/// Every algorithm that counts over time: all except `InFlight`.
pub(crate) const ALGORITHMS: [Algorithm; 6] = match Algorithm::ALL {
    [a, b, c, d, e, f, Algorithm::Concurrency] => [*a, *b, *c, *d, *e, *f],
    _ => panic!("`InFlight` is not the last algorithm"),
};
