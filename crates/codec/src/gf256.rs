//! The field GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D) and generator 2.
//!
//! The same field as ISA-L and klauspost/reedsolomon. Everything here is table-based and slow: it computes matrices,
//! and is the reference against which the kernels ([`crate::Kernel`]) are tested. Chunk bytes go through the kernels
//! only.

/// The field's reduction polynomial, x^8 + x^4 + x^3 + x^2 + 1.
pub const POLYNOMIAL: u16 = 0x11D;

pub(crate) const TABLES: ([u8; 512], [u8; 256]) = build_tables();

/// `EXP[i]` is 2^i, for i up to 511 so that a sum of two logarithms needs no reduction.
pub static EXP: [u8; 512] = TABLES.0;
/// `LOG[x]` is the i in 0..255 for which 2^i = x; `LOG[0]` is meaningless and 0.
pub static LOG: [u8; 256] = TABLES.1;

const fn build_tables() -> ([u8; 512], [u8; 256]) {
    let mut exp = [0u8; 512];
    let mut log = [0u8; 256];
    let mut x: u16 = 1;
    let mut i = 0;
    while i < 255 {
        exp[i] = x as u8;
        exp[i + 255] = x as u8;
        log[x as usize] = i as u8;
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= POLYNOMIAL;
        }
        i += 1;
    }
    exp[510] = exp[0];
    exp[511] = exp[1];
    (exp, log)
}

/// Multiplies two field elements.
#[inline]
pub fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// Multiplies two field elements by shifts and additions, for tables that are computed at compile time.
pub const fn mul_const(a: u8, b: u8) -> u8 {
    let mut product = 0u16;
    let mut bit = 0;
    while bit < 8 {
        if (b >> bit) & 1 == 1 {
            product ^= (a as u16) << bit;
        }
        bit += 1;
    }
    let mut degree = 14;
    while degree >= 8 {
        if (product >> degree) & 1 == 1 {
            product ^= POLYNOMIAL << (degree - 8);
        }
        degree -= 1;
    }
    product as u8
}

/// Returns the multiplicative inverse.
///
/// # Panics
/// If `a` is zero, which has none.
#[inline]
pub fn inv(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse in GF(2^8)");
    EXP[255 - LOG[a as usize] as usize]
}

/// Returns the quotient `a / b`.
///
/// # Panics
/// If `b` is zero.
#[inline]
pub fn div(a: u8, b: u8) -> u8 {
    mul(a, inv(b))
}

/// Reference for [`crate::accumulate`]: `dst ^= coefficient · src`, byte by byte.
///
/// # Panics
/// If the lengths differ.
pub fn accumulate_reference(coefficient: u8, src: &[u8], dst: &mut [u8]) {
    assert_eq!(src.len(), dst.len());
    for (d, s) in dst.iter_mut().zip(src) {
        *d ^= mul(coefficient, *s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_products_equal_shift_and_add_products() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), mul_const(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn every_nonzero_element_times_its_inverse_is_one() {
        for a in 1..=255 {
            assert_eq!(mul(a, inv(a)), 1);
            assert_eq!(div(a, a), 1);
        }
    }

    #[test]
    fn two_generates_the_whole_field() {
        let mut seen = [false; 256];
        for power in &EXP[..255] {
            seen[*power as usize] = true;
        }
        assert_eq!(seen.iter().filter(|seen| **seen).count(), 255);
        assert!(!seen[0]);
    }
}
