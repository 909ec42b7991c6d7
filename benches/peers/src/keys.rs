//! The callers: tenants in a random order, which is equal for every contestant.

use std::net::{Ipv4Addr, SocketAddr};

use http::HeaderValue;

/// Xorshift64*: cheap, and deterministic.
pub struct Random(u64);

impl Random {
    pub fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let spread = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        ((spread * bound as u64) >> 32) as usize
    }
}

pub fn tenant(index: usize) -> String {
    format!("tenant-{index:07}")
}

/// A shuffled stream of callers over `keys` keys, all equally frequent.
///
/// The stream is read in memory order, because a server has just read the
/// caller's name from the socket: only the limiter's own state should miss the
/// cache. A small set of keys is repeated in several orders, so that the branch
/// predictor cannot learn one.
pub fn stream<K>(keys: usize, seed: u64, make: impl Fn(usize) -> K) -> Vec<K> {
    const SHORTEST: usize = 8192;
    let mut random = Random::seeded(seed);
    let mut order: Vec<usize> = (0..keys).collect();
    let mut stream = Vec::new();
    while stream.len() < SHORTEST.max(keys) {
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        stream.extend(order.iter().map(|&index| make(index)));
    }
    stream
}

/// The caller of a request. Each layer reads one of the two fields.
pub struct Caller {
    pub peer: SocketAddr,
    pub api_key: HeaderValue,
}

impl Caller {
    pub fn new(index: usize) -> Self {
        let address = Ipv4Addr::from(0x0A00_0000 + index as u32);
        Self {
            peer: SocketAddr::from((address, 40_000)),
            api_key: HeaderValue::try_from(tenant(index)).expect("a tenant is ASCII"),
        }
    }
}
