//! The greatest common divisor, for rates in lowest terms. The result is never
//! zero, so it can always divide.

use std::ops::Rem;

/// The greatest common divisor of two numbers; 1 if both are zero.
pub(crate) fn gcd<T>(mut a: T, mut b: T) -> T
where
    T: Copy + PartialEq + From<u8> + Rem<Output = T>,
{
    let zero = T::from(0);
    while b != zero {
        (a, b) = (b, a % b);
    }
    if a == zero { T::from(1) } else { a }
}
