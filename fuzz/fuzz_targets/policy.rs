//! Fuzzes the policy parser with arbitrary YAML.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_ratelimit::{Policy, RateLimiter};

fuzz_target!(|text: &str| {
    // A policy that parses may still be invalid; then building it fails.
    if let Ok(policy) = Policy::from_yaml(text) {
        let _ = RateLimiter::new(policy);
    }
});
