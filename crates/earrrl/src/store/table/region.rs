//! Memory for the items of a table: allocated by this process, or mapped from a file that other
//! processes map too.
//!
//! This module has `unsafe` code because a table borrows its items from a mapping that it keeps
//! alive itself, which no safe type of the standard library expresses.
#![allow(unsafe_code)]

use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

/// A type that processes may share in mapped memory.
///
/// # Safety
/// Every bit pattern must be a valid value, the type must not need to be dropped, and every change
/// must be atomic, since other processes change the same memory at any time.
pub(crate) unsafe trait Shareable: Sync {}

// SAFETY: an atomic integer accepts all bit patterns.
unsafe impl Shareable for AtomicU64 {}

/// The owner of mapped memory.
///
/// # Safety
/// [`memory`](Self::memory) must always return the same range, which must be readable, writable and
/// used by nothing else in this process until the owner is dropped.
pub(crate) unsafe trait Memory: Send + Sync {
    /// Returns the first byte and the number of bytes.
    fn memory(&self) -> (NonNull<u8>, usize);
}

/// A fixed number of items that do not move.
pub(crate) struct Region<T> {
    start: NonNull<T>,
    len: usize,
    source: Backing,
}

/// The origin of a region's memory.
enum Backing {
    /// A vector with this capacity.
    Allocated(usize),
    /// Memory that is unmapped with the last region in it.
    Mapped { _owner: Arc<dyn Memory> },
}

// SAFETY: a region is accessed as a slice of its items, and drops them as a vector does.
unsafe impl<T: Send> Send for Region<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Region<T> {}

impl<T> Region<T> {
    /// Returns a region with the items of a vector.
    pub(crate) fn allocated(items: Vec<T>) -> Self {
        let mut items = core::mem::ManuallyDrop::new(items);
        let start = NonNull::from(&mut **items).cast();
        let len = items.len();
        Self {
            start,
            len,
            source: Backing::Allocated(items.capacity()),
        }
    }

    /// Returns the `len` items that begin `offset` bytes after the start of mapped memory. Returns
    /// `None` if they are not inside of it or not aligned.
    pub(crate) fn mapped(owner: &Arc<dyn Memory>, offset: usize, len: usize) -> Option<Self>
    where
        T: Shareable,
    {
        let (start, bytes) = owner.memory();
        let end = len.checked_mul(size_of::<T>())?.checked_add(offset)?;
        let is_aligned = (start.addr().get() + offset).is_multiple_of(align_of::<T>());
        if end > bytes || !is_aligned {
            return None;
        }
        // SAFETY: `offset` is at most `bytes`, as was checked.
        let start = unsafe { start.add(offset) }.cast();
        Some(Self {
            start,
            len,
            source: Backing::Mapped {
                _owner: Arc::clone(owner),
            },
        })
    }
}

impl<T> Deref for Region<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the range holds `len` values of `T`: those of a vector that nothing else uses, or
        // bytes of a mapping that are a `Shareable` value, whatever they are. Both live as long as
        // `self`.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for Region<T> {
    fn drop(&mut self) {
        if let Backing::Allocated(capacity) = self.source {
            // SAFETY: these are the parts of the vector that `allocated` took apart.
            drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, capacity) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    /// A leaked allocation as the owner of memory.
    struct Leaked(&'static [AtomicU64]);

    // SAFETY: the allocation is never freed, and the tests use it through regions only.
    unsafe impl Memory for Leaked {
        fn memory(&self) -> (NonNull<u8>, usize) {
            (NonNull::from(self.0).cast(), size_of_val(self.0))
        }
    }

    #[test]
    fn a_region_has_the_items_of_its_vector() {
        let item = Arc::new(());
        let region = Region::allocated(vec![Arc::clone(&item); 3]);
        assert_eq!((region.len(), Arc::strong_count(&item)), (3, 4));
        drop(region);
        assert_eq!(Arc::strong_count(&item), 1);
        assert!(Region::<u64>::allocated(Vec::new()).is_empty());
    }

    #[test]
    fn mapped_items_are_within_their_memory_and_shared() {
        let numbers: Vec<_> = (0..4).map(AtomicU64::new).collect();
        let owner: Arc<dyn Memory> = Arc::new(Leaked(numbers.leak()));
        let all = Region::<AtomicU64>::mapped(&owner, 0, 4).unwrap();
        let last = Region::<AtomicU64>::mapped(&owner, 24, 1).unwrap();
        last[0].store(9, Relaxed);
        assert_eq!(all[3].load(Relaxed), 9);
        for (offset, len) in [(0, 5), (32, 1), (4, 1), (8, usize::MAX), (usize::MAX, 1)] {
            assert!(
                Region::<AtomicU64>::mapped(&owner, offset, len).is_none(),
                "{offset} {len}"
            );
        }
    }
}
