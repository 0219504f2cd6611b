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

/// An owner of mapped memory.
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
    /// The vector or the mapping that has the items. It is freed with the last region in it.
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: a region is accessed as a slice of its items, whose owner threads may share.
unsafe impl<T: Sync> Send for Region<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Region<T> {}

impl<T> Region<T> {
    /// Returns a region with the items of a vector.
    pub(crate) fn allocated(items: Vec<T>) -> Self
    where
        T: Send + Sync + 'static,
    {
        let owner = Arc::new(items);
        Self {
            start: NonNull::from(&owner[..]).cast(),
            len: owner.len(),
            _owner: owner,
        }
    }

    /// Returns the `len` items that begin `offset` bytes after the start of mapped memory. Returns
    /// `None` if they are not inside of it or not aligned.
    pub(crate) fn mapped<M>(owner: &Arc<M>, offset: usize, len: usize) -> Option<Self>
    where
        M: Memory + 'static,
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
            _owner: Arc::clone(owner) as _,
        })
    }
}

impl<T> Deref for Region<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the range holds `len` values of `T`: those of a vector that is never changed, or bytes of a
        // mapping that are a `Shareable` value, whatever they are. Both live as long as `self`.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
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
        let owner = Arc::new(Leaked(numbers.leak()));
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
