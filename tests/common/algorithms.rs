//! What the tests of guarantees are run for.

use tower_ratelimit::Algorithm;

/// All that count over time: all but the last.
pub(crate) const ALGORITHMS: [Algorithm; 6] = match Algorithm::ALL {
    [timed @ .., Algorithm::InFlight] => timed,
    _ => panic!("another order"),
};
