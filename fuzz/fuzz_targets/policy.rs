//! A policy file that anybody may have written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_ratelimit::{Policy, RateLimiter};

fuzz_target!(|text: &str| {
    // What is read may still not hold; then building says so.
    if let Ok(policy) = Policy::from_yaml(text) {
        let _ = RateLimiter::new(policy);
    }
});
