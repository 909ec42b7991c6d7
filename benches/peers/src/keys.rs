//! The callers: tenants in a random order, the same order for every contestant.

use std::net::{Ipv4Addr, SocketAddr};

use http::HeaderValue;

/// Xorshift64*: cheap, and the same in every run.
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

/// A stream of callers over `keys` keys, each equally often, shuffled.
///
/// The stream itself is in memory order, because a server has just read its
/// caller's name off the wire: only the limiter's own state should miss the
/// cache. Few keys are shuffled several times over, lest the branch predictor
/// learn the order by heart.
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

/// What a request says of its caller; each layer reads the part that it wants.
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
