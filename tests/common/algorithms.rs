//! What the tests of guarantees are run for.

use tower_ratelimit::Algorithm;

/// All that count over time.
pub(crate) const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::AnchoredWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
];
