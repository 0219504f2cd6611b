//! A keyed hash by the processor's AES instructions: AES-128 in CMAC mode (RFC 4493), shortened to
//! five rounds of AES for keys of at most 16 bytes.
//!
//! Five rounds are enough here: clients never see a hash, only if two of their keys share a set,
//! and no attack on five keyed rounds works with so little. Keys of several blocks use all ten
//! rounds.
//!
//! This module has `unsafe` code because these instructions may only be used if the processor has
//! them, which [`Cmac::new`] checks.
#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m128i, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_aeskeygenassist_si128, _mm_cvtsi128_si64,
    _mm_set_epi64x, _mm_shuffle_epi32, _mm_slli_si128, _mm_unpackhi_epi64, _mm_xor_si128,
};
use core::hash::Hasher;

const ROUNDS: usize = 10;
/// The number of rounds for a key of at most one block.
const SHORT: usize = 5;
const BLOCK: usize = 16;

/// An expanded AES key.
#[derive(Clone, Copy)]
pub(super) struct Cmac {
    rounds: [__m128i; ROUNDS + 1],
    /// The CMAC masks of the last block: one for a whole block, one for a padded block.
    whole: __m128i,
    padded: __m128i,
}

impl Cmac {
    /// Expands a key. Returns `None` if the processor has no AES instructions.
    pub(super) fn new(key: &[u8; BLOCK]) -> Option<Self> {
        if !std::arch::is_x86_feature_detected!("aes") {
            return None;
        }
        // SAFETY: the processor has the instructions, which was checked above.
        let rounds = unsafe { expand(wide(u128::from_le_bytes(*key))) };
        let zero = wide(0);
        let mut cmac = Self {
            rounds,
            whole: zero,
            padded: zero,
        };
        let once = cmac.encrypt(zero);
        let once = double(u128::from(high(once)) << 64 | u128::from(low(once)));
        cmac.whole = wide(once);
        cmac.padded = wide(double(once));
        Some(cmac)
    }

    pub(super) fn hasher(&self) -> CmacHasher<'_> {
        CmacHasher {
            cmac: self,
            state: wide(0),
            block: wide(0),
            filled: 0,
            is_chained: false,
        }
    }

    /// Encrypts one block with ten rounds.
    #[inline(always)]
    fn encrypt(&self, block: __m128i) -> __m128i {
        // SAFETY: only `new` makes a `Cmac`, and only if the processor has the instructions.
        unsafe { encrypt(&self.rounds, block) }
    }
}

/// Hashes a key that is written piece by piece. If the state is kept in memory between two pieces,
/// no store may be narrower than the load that follows: such a load waits until the store is done,
/// and so until the previous decision is over.
#[derive(Clone, Copy)]
pub(super) struct CmacHasher<'a> {
    cmac: &'a Cmac,
    state: __m128i,
    /// The unfinished block, its first byte lowest, and the number of bytes in it.
    block: __m128i,
    filled: usize,
    /// True once a whole block was encrypted.
    is_chained: bool,
}

impl CmacHasher<'_> {
    /// Appends the lowest `count` bytes, 1 to 16; the bytes above them must be 0.
    #[inline(always)]
    fn take(&mut self, bytes: u128, count: usize) {
        if self.filled + count > BLOCK {
            return self.overflow(bytes, count);
        }
        self.block = xor(self.block, wide(bytes << (8 * self.filled)));
        self.filled += count;
    }

    /// Appends bytes that do not fit the unfinished block. The block is encrypted only now that
    /// more bytes follow, since the last block of a key is masked first.
    #[inline(always)]
    fn overflow(&mut self, bytes: u128, count: usize) {
        let free_bits = 8 * (BLOCK - self.filled) as u32;
        let first = bytes.checked_shl(128 - free_bits).unwrap_or(0);
        self.encrypt(xor(self.block, wide(first)));
        self.block = wide(bytes >> free_bits);
        self.filled = self.filled + count - BLOCK;
    }

    #[inline(always)]
    fn encrypt(&mut self, block: __m128i) {
        self.state = self.cmac.encrypt(xor(self.state, block));
        self.is_chained = true;
    }

    /// Appends bytes to a key that has been begun.
    #[inline(never)]
    fn and(mut self, bytes: &[u8]) -> Self {
        for bytes in bytes.chunks(BLOCK) {
            self.take(little_endian(bytes), bytes.len());
        }
        self
    }
}

impl Hasher for CmacHasher<'_> {
    /// Fast path for the first, and usually only, bytes of a key, which need no shift.
    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) {
        if self.filled > 0 {
            *self = self.and(bytes);
            return;
        }
        let mut rest = bytes;
        while rest.len() > BLOCK
            && let Some((block, more)) = rest.split_first_chunk()
        {
            self.encrypt(wide(u128::from_le_bytes(*block)));
            rest = more;
        }
        (self.block, self.filled) = (wide(little_endian(rest)), rest.len());
    }

    #[inline(always)]
    fn write_u8(&mut self, byte: u8) {
        if self.filled == BLOCK {
            self.encrypt(self.block);
            (self.block, self.filled) = (wide(0), 0);
        }
        self.take(byte.into(), 1);
    }

    #[inline(always)]
    fn write_u32(&mut self, number: u32) {
        self.take(number.into(), 4);
    }

    #[inline(always)]
    fn write_u64(&mut self, number: u64) {
        self.take(number.into(), 8);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        let mask = if self.filled == BLOCK {
            self.cmac.whole
        } else {
            xor(self.cmac.padded, wide(0x80 << (8 * self.filled)))
        };
        let block = xor(self.block, mask);
        if self.is_chained {
            low(self.cmac.encrypt(xor(block, self.state)))
        } else {
            // SAFETY: a `Cmac` exists only if the processor has the instructions.
            low(unsafe { five_rounds(&self.cmac.rounds, block) })
        }
    }
}

/// Converts at most 16 bytes to a number by overlapping loads, which is faster than a copy of
/// variable length.
#[inline(always)]
fn little_endian(bytes: &[u8]) -> u128 {
    let shift = 8 * (BLOCK - bytes.len()) as u32;
    if let (Some(low), Some(high)) = (bytes.first_chunk(), bytes.last_chunk())
        && bytes.len() > 8
    {
        let high = u64::from_le_bytes(*high) >> shift;
        return u128::from(u64::from_le_bytes(*low)) | u128::from(high) << 64;
    }
    if let (Some(low), Some(high)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let high = u64::from(u32::from_le_bytes(*high)) << (96 - shift);
        return (u64::from(u32::from_le_bytes(*low)) | high).into();
    }
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}

#[inline(always)]
fn wide(block: u128) -> __m128i {
    // SAFETY: every processor of this architecture has SSE2.
    unsafe { _mm_set_epi64x((block >> 64) as i64, block as i64) }
}

#[inline(always)]
fn xor(one: __m128i, other: __m128i) -> __m128i {
    // SAFETY: every processor of this architecture has SSE2.
    unsafe { _mm_xor_si128(one, other) }
}

#[inline(always)]
fn low(block: __m128i) -> u64 {
    // SAFETY: every processor of this architecture has SSE2.
    unsafe { _mm_cvtsi128_si64(block) as u64 }
}

#[inline(always)]
fn high(block: __m128i) -> u64 {
    // SAFETY: every processor of this architecture has SSE2.
    low(unsafe { _mm_unpackhi_epi64(block, block) })
}

/// Encrypts one block with ten rounds. The function uses the C ABI because the Rust ABI passes
/// vector arguments in memory, the C ABI in registers.
#[target_feature(enable = "aes")]
#[expect(
    improper_ctypes_definitions,
    reason = "nobody calls it from another language"
)]
extern "C" fn encrypt(rounds: &[__m128i; ROUNDS + 1], block: __m128i) -> __m128i {
    let [first, middle @ .., last] = rounds;
    let mut block = _mm_xor_si128(block, *first);
    for round in middle {
        block = _mm_aesenc_si128(block, *round);
    }
    _mm_aesenclast_si128(block, *last)
}

/// Encrypts one block with only the first five rounds.
#[target_feature(enable = "aes")]
#[expect(
    improper_ctypes_definitions,
    reason = "nobody calls it from another language"
)]
extern "C" fn five_rounds(rounds: &[__m128i; ROUNDS + 1], block: __m128i) -> __m128i {
    let block = _mm_xor_si128(block, rounds[0]);
    (1..=SHORT).fold(block, |block, round| _mm_aesenc_si128(block, rounds[round]))
}

/// Returns the keys of all rounds; see FIPS 197, section 5.2.
#[target_feature(enable = "aes")]
fn expand(key: __m128i) -> [__m128i; ROUNDS + 1] {
    let mut rounds = [key; ROUNDS + 1];
    rounds[1] = next::<0x01>(rounds[0]);
    rounds[2] = next::<0x02>(rounds[1]);
    rounds[3] = next::<0x04>(rounds[2]);
    rounds[4] = next::<0x08>(rounds[3]);
    rounds[5] = next::<0x10>(rounds[4]);
    rounds[6] = next::<0x20>(rounds[5]);
    rounds[7] = next::<0x40>(rounds[6]);
    rounds[8] = next::<0x80>(rounds[7]);
    rounds[9] = next::<0x1B>(rounds[8]);
    rounds[10] = next::<0x36>(rounds[9]);
    rounds
}

#[target_feature(enable = "aes")]
fn next<const CONSTANT: i32>(key: __m128i) -> __m128i {
    let last = _mm_shuffle_epi32::<0xFF>(_mm_aeskeygenassist_si128::<CONSTANT>(key));
    let pairs = _mm_xor_si128(key, _mm_slli_si128::<4>(key));
    let all = _mm_xor_si128(pairs, _mm_slli_si128::<8>(pairs));
    _mm_xor_si128(all, last)
}

/// Doubles a block in the field of 2^128 elements, as CMAC does. The first byte of the block is the
/// most significant.
fn double(block: u128) -> u128 {
    let number = block.swap_bytes();
    let carry = if number >> 127 == 1 { 0x87 } else { 0 };
    (number << 1 ^ carry).swap_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const MESSAGE: u128 = 0x6bc1_bee2_2e40_9f96_e93d_7e11_7393_172a;

    fn cmac() -> Cmac {
        Cmac::new(&0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes()).unwrap()
    }

    #[test]
    fn tags_are_those_of_rfc_4493() {
        let message: Vec<u8> = [
            MESSAGE,
            0xae2d_8a57_1e03_ac9c_9eb7_6fac_45af_8e51,
            0x30c8_1c46_a35c_e411_e5fb_c119_1a0a_52ef,
            0xf69f_2445_df4f_9b17_ad2b_417b_e66c_3710,
        ]
        .iter()
        .flat_map(|block| block.to_be_bytes())
        .collect();
        for (length, tag) in [(40, 0xdfa6_6747_de9a_e630_u64), (64, 0x51f0_bebf_7e3b_9d92)] {
            let cmac = cmac();
            let mut hasher = cmac.hasher();
            hasher.write(&message[..length]);
            assert_eq!(hasher.finish(), tag.swap_bytes(), "{length} bytes");
        }
    }

    /// The expected block is the state at the start of round 6 in FIPS 197, appendix C.1.
    #[test]
    fn one_block_goes_through_five_rounds() {
        let key: [u8; BLOCK] = core::array::from_fn(|nth| nth as u8);
        let block = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.swap_bytes();
        let cmac = Cmac::new(&key).unwrap();
        // SAFETY: `Cmac::new` has found the instructions.
        let after = unsafe { five_rounds(&cmac.rounds, wide(block)) };
        let expected = 0xc816_77bc_9b7a_c93b_2502_7992_b026_1996_u128.swap_bytes();
        assert_eq!(
            (high(after), low(after)),
            ((expected >> 64) as u64, expected as u64)
        );
        let mut hasher = cmac.hasher();
        hasher.write_u64(7);
        let padded = xor(wide(7 | 0x80 << 64), cmac.padded);
        // SAFETY: `Cmac::new` has found the instructions.
        let expected = unsafe { five_rounds(&cmac.rounds, padded) };
        assert_eq!(hasher.finish(), low(expected));
    }

    #[test]
    fn bytes_may_come_in_pieces() {
        let bytes: Vec<u8> = (0..100).collect();
        let cmac = cmac();
        for length in 0..bytes.len() {
            let mut whole = cmac.hasher();
            whole.write(&bytes[..length]);
            for piece in 1..20 {
                let mut pieces = cmac.hasher();
                bytes[..length]
                    .chunks(piece)
                    .for_each(|piece| pieces.write(piece));
                pieces.write(&[]);
                assert_eq!(pieces.finish(), whole.finish(), "{length} bytes by {piece}");
            }
        }
        let mut numbers = cmac.hasher();
        let mut written = cmac.hasher();
        numbers.write_u8(1);
        numbers.write_u32(2);
        numbers.write_u64(3);
        written.write(&[1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(numbers.finish(), written.finish());
    }
}
