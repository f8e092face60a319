//! SplitMix64 (Steele, Lea and Flood, “Fast splittable pseudorandom number generators”, OOPSLA 2014).
//!
//! Use it for seeded choices that must be the same in every process and every version, because something stored or
//! published depends on them: the points of a code, the sizes of a workload's objects, tables of results. A library's
//! generator may change its numbers with its version. For draws that only have to be random, use the runtime's
//! generator.
//!
//! The n-th number of a generator is [`finalise`] of its seed plus n times [`GAMMA`], so the generator is also a hash
//! of n ([`hash`]). Neither withstands an adversary.

#![forbid(unsafe_code)]

/// Increment of the state for each number: 2⁶⁴ divided by the golden ratio, made odd.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Permutes the 64-bit numbers so that every bit of the result depends on every bit of `bits`. 0 stays 0.
pub const fn finalise(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Hashes a number: returns the first number that a generator seeded with it draws.
pub const fn hash(number: u64) -> u64 {
    finalise(number.wrapping_add(GAMMA))
}

/// A generator with period 2⁶⁴: it returns each 64-bit number once before it repeats.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Creates a generator seeded with `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        finalise(self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_that_were_published() {
        // The first five numbers of the reference implementation for the seed 1234567.
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(published.map(|_| random.next()), published);
        assert_eq!(hash(1_234_567), published[0]);
    }
}
