//! Memory of a million keys.

use std::hint::black_box;

use crate::{
    alloc::counted,
    decision::{Limitador, governor_limiter, rate_net_limiter, throttle_kit_limiter},
    keys,
    race::now,
    table::{Table, figure, times},
};

const KEYS: usize = 1_000_000;

pub fn section() {
    let mut table = Table::new("Memory, 1,000,000 keys of one tier", ["crate", "bytes a key", "of governor's"]);
    let all = [
        ("governor", governor()),
        ("rate-net", rate_net()),
        ("throttle-kit", throttle_kit()),
        ("limitador", limitador()),
        #[cfg(feature = "ours")]
        ("tower-ratelimit", ours()),
    ];
    for (name, bytes) in all {
        table.row([name.to_owned(), figure(bytes), times(bytes / all[0].1)]);
    }
    table.print();
    println!(
        "\nBytes that the limiter holds, its copies of the 14-byte keys included, divided by the \
         keys; each block as glibc rounds it up."
    );
}

/// Builds a limiter, uses each key once, and returns the bytes a key.
fn bytes_per_key<L>(build: impl FnOnce() -> L, allows: impl Fn(&L, &String) -> bool) -> f64 {
    let (limiter, bytes) = counted(|| {
        let limiter = build();
        for index in 0..KEYS {
            assert!(allows(&limiter, &keys::tenant(index)), "rejected within its limit");
        }
        limiter
    });
    drop(black_box(limiter));
    bytes as f64 / KEYS as f64
}

fn governor() -> f64 {
    bytes_per_key(governor_limiter, |limiter, key| limiter.check_key(key).is_ok())
}

fn rate_net() -> f64 {
    bytes_per_key(rate_net_limiter, |limiter, key| limiter.check(key.as_str()).is_allow())
}

fn throttle_kit() -> f64 {
    bytes_per_key(throttle_kit_limiter, |limiter, key| now(limiter.check(key)).allowed)
}

fn limitador() -> f64 {
    bytes_per_key(Limitador::new, |limiter, key| limiter.allows(key))
}

#[cfg(feature = "ours")]
fn ours() -> f64 {
    use crate::ours::{allows, limiter, plenty};

    bytes_per_key(|| limiter(plenty()), |limiter, key| allows(limiter, key))
}
