//! One slot of the table: 128 bits that are read in halves and changed as a whole.
//!
//! Its `unsafe` code is needed because no portable
//! type reads half of a 128-bit atomic: the processor's own instructions do, and a scan of a cache
//! line needs only the high halves. On x86-64 every access to a slot is one such instruction; other
//! processors, and Miri, use `portable_atomic`. The model checker uses its own [`Slot`].
#![allow(unsafe_code)]

use super::entry::Entry;
use super::region::Shareable;
use crate::algorithm::Policy;

/// The slots of one cache line.
#[repr(C, align(64))]
pub struct Line<S, const LINE: usize>(pub(super) [S; LINE]);

// SAFETY: a line consists of its slots.
unsafe impl<S: Shareable, const LINE: usize> Shareable for Line<S, LINE> {}

/// The memory operations that the table needs. Every operation is sequentially consistent.
pub trait Slot: Sized + Send + Sync + 'static {
    /// True if an insertion rescans. Only a model that shows what goes wrong without the rescan
    /// sets this to false.
    const RESCANS: bool = true;

    fn vacant() -> Self;

    /// Returns the high half of the slot.
    fn high(&self) -> u64;

    /// Returns the low half of the slot. Together with a [`high`](Self::high) that was read
    /// earlier, it may form an entry that never existed; a swap or a [`load`](Self::load) detects
    /// that.
    fn low(&self) -> u64;

    /// Returns both halves, which are read separately and may form an entry that never existed.
    #[inline(always)]
    fn read(&self) -> Entry {
        let high = self.high();
        let low = self.low();
        Entry { high, low }
    }

    /// Returns both halves as they were at the same instant.
    fn load(&self) -> Entry;

    /// Replaces `seen` by `new`. Returns the present entry as an error if it is not `seen`.
    fn swap(&self, seen: Entry, new: Entry) -> Result<(), Entry>;

    /// Returns the slots of a line that may hold the fingerprint, as a bit set that may contain too
    /// many slots but misses none.
    #[inline(always)]
    fn matches<const LINE: usize>(line: &[Self; LINE], wanted: u64) -> u32 {
        Self::matches_and_free(line, wanted)[0]
    }

    /// Returns the slots of a line that may hold the fingerprint, and those that may be free, each as
    /// [`matches`](Self::matches) does. Both answers about a slot come from one access to it. It has no branches,
    /// since the place of a key in its line cannot be predicted.
    #[inline(always)]
    fn matches_and_free<const LINE: usize>(line: &[Self; LINE], wanted: u64) -> [u32; 2] {
        let highs = line.iter().map(Self::high).enumerate();
        highs.fold([0; 2], |[found, free], (nth, high)| {
            let fingerprint = Entry { high, low: 0 }.fingerprint();
            let is = |expected| u32::from(fingerprint == expected) << nth;
            [found | is(wanted), free | is(0)]
        })
    }

    /// Returns the slots of a set that may hold the fingerprint, as [`matches`](Self::matches) does for a line.
    #[inline(always)]
    fn matches_in<const LINE: usize, const LINES: usize>(
        set: &[Line<Self, LINE>; LINES],
        wanted: u64,
    ) -> u32 {
        let lines = set.iter().enumerate();
        lines.fold(0, |found, (nth, line)| {
            found | Self::matches(&line.0, wanted) << (nth * LINE)
        })
    }
}

/// Returns true if this processor has a 128-bit compare-and-swap, so that no locks are needed.
pub(super) fn is_lock_free() -> bool {
    portable_atomic::AtomicU128::is_lock_free()
}

/// Requests huge pages for memory that is not yet used, which save a second cache miss per look-up
/// in large tables. The system may ignore the request.
pub(super) fn prefer_huge_pages<T>(spare: &mut [core::mem::MaybeUninit<T>]) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        const PAGE: usize = 4096;
        let bytes = core::mem::size_of_val(spare);
        let start = spare.as_mut_ptr().cast::<u8>();
        let skipped = start.align_offset(PAGE);
        if bytes >= skipped.saturating_add(2 << 20) {
            // SAFETY: the range lies inside `spare`, and the advice changes none of its bytes.
            let _ = unsafe {
                rustix::mm::madvise(
                    start.add(skipped).cast(),
                    bytes - skipped,
                    rustix::mm::Advice::LinuxHugepage,
                )
            };
        }
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = spare;
}

/// The reason for prefetching a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The line will be written to, so it is fetched exclusively: other processors lose their
    /// copies of it.
    Write,
    /// The line may only be read, so it is fetched in a state that several processors can share.
    Read,
}

impl Purpose {
    /// Returns the usual purpose under a policy: strict rules store every request, while leaky
    /// rules store nothing if they deny.
    #[inline(always)]
    pub(crate) fn of(policy: Policy) -> Self {
        match policy {
            Policy::Strict => Self::Write,
            Policy::Leaky => Self::Read,
        }
    }
}

/// Prefetches the cache line of `target`.
#[inline(always)]
pub(super) fn prefetch<T>(target: &T, to: Purpose) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect that a program could observe.
    unsafe {
        let target = core::ptr::from_ref(target);
        match to {
            Purpose::Write => core::arch::asm!("prefetchw [{}]", in(reg) target,
                options(nostack, preserves_flags, readonly)),
            Purpose::Read => core::arch::asm!("prefetcht0 [{}]", in(reg) target,
                options(nostack, preserves_flags, readonly)),
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (target, to);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod native {
    use core::arch::asm;
    use core::arch::x86_64::{
        __m128i, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_movemask_ps,
        _mm_packs_epi16, _mm_packs_epi32, _mm_set1_epi32,
    };
    use core::cell::UnsafeCell;

    use super::{Entry, Line, Slot};

    /// A slot in ordinary memory. Little-endian, so the low half comes first.
    #[repr(C, align(16))]
    pub struct AtomicSlot(UnsafeCell<[u64; 2]>);

    // SAFETY: the cell is reached only by the instructions below, each of which is atomic.
    unsafe impl Sync for AtomicSlot {}

    impl AtomicSlot {
        #[inline(always)]
        fn half<const INDEX: usize>(&self) -> u64 {
            let half;
            // SAFETY: an aligned 64-bit load inside the cell; the processor makes it atomic.
            unsafe {
                asm!("mov {}, qword ptr [{} + {}]", out(reg) half, in(reg) self.0.get(),
                    const INDEX * 8, options(nostack, preserves_flags, readonly));
            }
            half
        }

        /// Compares and swaps by `lock cmpxchg16b`. Returns true if the entry was replaced, and the
        /// entry before.
        #[inline(always)]
        fn compare_exchange(&self, seen: Entry, new: Entry) -> (bool, Entry) {
            let (low, high): (u64, u64);
            let replaced: u64;
            // SAFETY: the cell has 16 bytes and is aligned to 16, and `is_lock_free` has checked
            // that the processor has the instruction. The instruction needs rbx, which may not be
            // named as an operand, hence the moves. Exchanging registers instead would make
            // everything that the caller has in rbx depend on the new state, and so on memory.
            unsafe {
                asm!(
                    "mov r8, rbx",
                    "mov rbx, rsi",
                    "lock cmpxchg16b xmmword ptr [rdi]",
                    "sete cl",
                    "mov rbx, r8",
                    out("r8") _,
                    in("rdi") self.0.get(),
                    in("rsi") new.low,
                    inout("rcx") new.high => replaced,
                    inout("rax") seen.low => low,
                    inout("rdx") seen.high => high,
                    options(nostack),
                );
            }
            (replaced as u8 != 0, Entry { high, low })
        }
    }

    impl Slot for AtomicSlot {
        fn vacant() -> Self {
            Self(UnsafeCell::new([0; 2]))
        }

        #[inline(always)]
        fn high(&self) -> u64 {
            self.half::<1>()
        }

        #[inline(always)]
        fn low(&self) -> u64 {
            self.half::<0>()
        }

        /// Loads 16 bytes at once if the processor has AVX, which makes aligned loads of 16 bytes
        /// atomic. Other processors compare and swap an empty entry for an empty entry, which
        /// returns the content.
        #[inline]
        fn load(&self) -> Entry {
            if !std::arch::is_x86_feature_detected!("avx") {
                return self.compare_exchange(Entry::EMPTY, Entry::EMPTY).1;
            }
            let both: __m128i;
            // SAFETY: an aligned 16-byte load of the cell.
            unsafe {
                asm!("movdqa {}, xmmword ptr [{}]", out(xmm_reg) both, in(reg) self.0.get(),
                    options(nostack, preserves_flags, readonly));
                Entry::from_bits(core::mem::transmute::<__m128i, u128>(both))
            }
        }

        #[inline(always)]
        fn swap(&self, seen: Entry, new: Entry) -> Result<(), Entry> {
            let (replaced, found) = self.compare_exchange(seen, new);
            if replaced { Ok(()) } else { Err(found) }
        }

        /// Compares the topmost 32 bits of the fingerprints of all four slots at once.
        #[inline(always)]
        fn matches<const LINE: usize>(line: &[Self; LINE], wanted: u64) -> u32 {
            // SAFETY: every x86-64 processor has these instructions.
            unsafe { _mm_movemask_ps(_mm_castsi128_ps(compare(line, wanted))) as u32 }
        }

        #[inline(always)]
        fn matches_and_free<const LINE: usize>(line: &[Self; LINE], wanted: u64) -> [u32; 2] {
            let tops = tops(line);
            // SAFETY: as in `matches`.
            [wanted, 0].map(|wanted| unsafe {
                _mm_movemask_ps(_mm_castsi128_ps(equal(tops, wanted))) as u32
            })
        }

        /// Compares as `matches` does, and packs the answers of all four lines into one register.
        #[inline(always)]
        fn matches_in<const LINE: usize, const LINES: usize>(
            set: &[Line<Self, LINE>; LINES],
            wanted: u64,
        ) -> u32 {
            const { assert!(LINES == 4) };
            let [a, b, c, d] = [0, 1, 2, 3].map(|nth| compare(&set[nth].0, wanted));
            // SAFETY: as in `matches`.
            unsafe {
                let packed = _mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
                _mm_movemask_epi8(packed) as u32
            }
        }
    }

    /// Compares the topmost 32 bits of the fingerprints of all four slots of a line with those of `wanted`.
    #[inline(always)]
    fn compare<const LINE: usize>(line: &[AtomicSlot; LINE], wanted: u64) -> __m128i {
        equal(tops(line), wanted)
    }

    #[inline(always)]
    fn equal(tops: __m128i, wanted: u64) -> __m128i {
        // SAFETY: every x86-64 processor has these instructions.
        unsafe { _mm_cmpeq_epi32(tops, _mm_set1_epi32((wanted >> 8) as i32)) }
    }

    /// Returns the topmost 32 bits of the fingerprints of all four slots of a line.
    #[inline(always)]
    fn tops<const LINE: usize>(line: &[AtomicSlot; LINE]) -> __m128i {
        const { assert!(LINE == 4) };
        let tops: __m128i;
        // SAFETY: aligned loads of the line's four slots. Only the topmost 32 bits of each slot
        // are used, and each of these is loaded by one access.
        unsafe {
            asm!(
                "movdqa {tops}, xmmword ptr [{line}]",
                "movdqa {rest}, xmmword ptr [{line} + 32]",
                "punpckhdq {tops}, xmmword ptr [{line} + 16]",
                "punpckhdq {rest}, xmmword ptr [{line} + 48]",
                "punpckhqdq {tops}, {rest}",
                line = in(reg) line.as_ptr(),
                tops = out(xmm_reg) tops,
                rest = out(xmm_reg) _,
                options(nostack, preserves_flags, readonly),
            );
        }
        tops
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod native {
    use core::sync::atomic::Ordering::SeqCst;

    use portable_atomic::AtomicU128;

    use super::{Entry, Slot};

    /// A slot in ordinary memory.
    pub struct AtomicSlot(AtomicU128);

    impl Slot for AtomicSlot {
        fn vacant() -> Self {
            Self(AtomicU128::new(0))
        }

        #[inline]
        fn high(&self) -> u64 {
            self.load().high
        }

        #[inline]
        fn low(&self) -> u64 {
            self.load().low
        }

        #[inline]
        fn load(&self) -> Entry {
            Entry::from_bits(self.0.load(SeqCst))
        }

        #[inline]
        fn swap(&self, seen: Entry, new: Entry) -> Result<(), Entry> {
            match self
                .0
                .compare_exchange(seen.to_bits(), new.to_bits(), SeqCst, SeqCst)
            {
                Ok(_) => Ok(()),
                Err(found) => Err(Entry::from_bits(found)),
            }
        }
    }
}

pub(super) use native::AtomicSlot;

// SAFETY: all 128 bits of a slot are a valid entry, and are changed as a whole. Tables are built
// only where that takes one instruction and no lock.
unsafe impl super::region::Shareable for AtomicSlot {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_swapped_only_from_what_it_holds() {
        let slot = AtomicSlot::vacant();
        let one = Entry {
            high: 1 << 63,
            low: 2,
        };
        let two = Entry {
            high: 3,
            low: u64::MAX,
        };
        assert_eq!(slot.swap(one, two), Err(Entry::EMPTY));
        assert_eq!(slot.swap(Entry::EMPTY, one), Ok(()));
        assert_eq!((slot.high(), slot.low()), (1 << 63, 2));
        assert_eq!(slot.swap(one, two), Ok(()));
        assert_eq!(slot.load(), two);
        assert_eq!(core::mem::size_of::<AtomicSlot>(), 16);
        assert_eq!(core::mem::align_of::<AtomicSlot>(), 16);
    }
}
