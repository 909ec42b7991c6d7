//! What displaced keys had used: [`UsageSketch`], a Bloom filter that holds
//! amounts. It knows neither keys nor machines.
//!
//! Invariant: it never reports less than was stored for a hash, until an eighth as
//! many others were stored as the cap allows entries. It may report more: for one
//! hash in two thousand, what was stored for others.

/// The cells of each entry that the cap allows, in each of the two halves.
pub(super) const CELLS: usize = 4;

/// How many cells a hash has.
const HASHES: u64 = 4;

/// A half is full when it stores an amount for every so many cells.
const CELLS_PER_HASH: usize = 32;

/// Two halves: when the current one is full, it replaces the previous one.
#[derive(Debug)]
pub(super) struct UsageSketch {
    current: Box<[u8]>,
    previous: Box<[u8]>,
    stored: usize,
}

impl UsageSketch {
    pub(super) fn new(cells: usize) -> Self {
        let half = || vec![0; cells.max(CELLS_PER_HASH)].into_boxed_slice();
        Self { current: half(), previous: half(), stored: 0 }
    }

    /// Stores an amount for a hash, unless a larger one is stored.
    pub(super) fn store(&mut self, hash: u64, amount: u64) {
        if (self.stored + 1) * CELLS_PER_HASH > self.current.len() {
            std::mem::swap(&mut self.current, &mut self.previous);
            self.current.fill(0);
            self.stored = 0;
        }
        self.stored += 1;
        for cell in cells(hash, self.current.len()) {
            self.current[cell] = self.current[cell].max(encode(amount));
        }
    }

    /// The amount that was stored for a hash, rounded up by at most a quarter;
    /// zero if none was.
    pub(super) fn load(&self, hash: u64) -> u64 {
        let least = |half: &[u8]| cells(hash, half.len()).map(|cell| half[cell]).min().unwrap_or(0);
        decode(least(&self.current).max(least(&self.previous)))
    }
}

/// A number in eight bits: two of the mantissa, six of the exponent, rounded up.
/// Exact up to eight.
fn encode(amount: u64) -> u8 {
    let exponent = (u64::BITS - amount.leading_zeros()).saturating_sub(3);
    let mantissa = amount.div_ceil(1 << exponent);
    u8::try_from(u64::from(exponent) * 4 + mantissa).unwrap_or(u8::MAX)
}

fn decode(code: u8) -> u64 {
    let exponent = u32::from(code / 4).saturating_sub(1);
    let mantissa = u64::from(code) - u64::from(exponent) * 4;
    u64::try_from(u128::from(mantissa) << exponent).unwrap_or(u64::MAX)
}

/// The cells of a hash, of `len`.
fn cells(hash: u64, len: usize) -> impl Iterator<Item = usize> {
    let (first, step) = (hash, hash.rotate_left(32) | 1);
    #[allow(clippy::cast_possible_truncation, reason = "less than len")]
    let cell = move |nth: u64| ((u128::from(first.wrapping_add(nth.wrapping_mul(step))) * len as u128) >> 64) as usize;
    (0..HASHES).map(cell)
}

#[cfg(test)]
mod tests;
