//! The algorithms that the tests of guarantees run with.

use tower_ratelimit::Algorithm;

/// Every algorithm that counts over time: all except `InFlight`.
pub(crate) const ALGORITHMS: [Algorithm; 6] = match Algorithm::ALL {
    [timed @ .., Algorithm::InFlight] => timed,
    _ => panic!("`InFlight` is not the last algorithm"),
};
