//! What nothing can be faster than: one compare-and-swap of 16 bytes at a random place, and a clock.

use std::hint::black_box;

use crate::contender::Contender;

pub struct Floor {
    words: Vec<[u64; 2]>,
    slots: usize,
    clock: Option<quanta::Clock>,
}

impl Floor {
    /// As many 16-byte words as our table has for this many clients.
    pub fn new(clients: usize, with_clock: bool) -> Self {
        let slots = clients.div_ceil(12).max(2) * 16;
        // All pages are touched, and huge if the allocator gets any.
        let words = vec![[1, 1]; slots + 1];
        Self {
            words,
            slots,
            clock: with_clock.then(quanta::Clock::new),
        }
    }

    fn place(&self, key: u64) -> *mut u128 {
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let slot = ((u128::from(hash) * self.slots as u128) >> 64) as usize;
        let first = self.words.as_ptr();
        let aligned = first
            .cast::<u8>()
            .wrapping_add(first.cast::<u8>().align_offset(16));
        aligned.wrapping_add(16 * slot).cast_mut().cast()
    }

    fn swap(&self, key: u64) -> bool {
        let added = self.clock.as_ref().map_or(1, quanta::Clock::raw);
        let place = self.place(key);
        // Inside the allocation: the place is below `slots`, which leaves room for the alignment.
        unsafe {
            let seen = place.cast::<u64>().read_volatile();
            let high = place.cast::<u64>().add(1).read_volatile();
            compare_exchange(place, (seen, high), (seen.wrapping_add(added), high))
        }
    }
}

// The words are only changed by the atomic instruction below.
unsafe impl Sync for Floor {}

unsafe fn compare_exchange(place: *mut u128, seen: (u64, u64), new: (u64, u64)) -> bool {
    let replaced: u64;
    unsafe {
        std::arch::asm!(
            // Moved, not exchanged: what is kept in rbx must not wait for the new word.
            "mov {kept}, rbx",
            "mov rbx, {low}",
            "lock cmpxchg16b xmmword ptr [rdi]",
            "sete cl",
            "mov rbx, {kept}",
            kept = out(reg) _,
            low = in(reg) new.0,
            in("rdi") place,
            inout("rcx") new.1 => replaced,
            inout("rax") seen.0 => _,
            inout("rdx") seen.1 => _,
            options(nostack),
        );
    }
    replaced as u8 != 0
}

impl Contender<u64> for Floor {
    fn decide(&self, key: &u64) -> bool {
        self.swap(*key)
    }

    fn decide_batch(&self, keys: &[u64]) -> usize {
        for key in keys {
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) self.place(*key),
                    options(nostack, preserves_flags, readonly));
            }
        }
        black_box(keys.iter().filter(|key| self.swap(**key)).count())
    }
}
