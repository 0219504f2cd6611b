//! Mapped memory: a file that is shared with the other processes that map it, or zeros of this process
//! that take no memory until they are written to.
//!
//! This module has `unsafe` code because a mapping is only a pointer and a length to Rust. A file
//! must not be truncated while it is mapped; whoever may do that can also kill the process.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr::NonNull;
use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::region::Memory;

/// Memory that is mapped for reading and writing. A mapped file stays open, since its locks would
/// otherwise be released.
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
    /// The addresses among which the memory is. The file is closed after they are unmapped.
    _addresses: Addresses,
    _file: Option<Arc<File>>,
}

/// A range of addresses of this process, which is unmapped when this is dropped.
struct Addresses {
    start: NonNull<c_void>,
    len: usize,
}

/// The size in bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// The advice by which the kernel moves memory into huge pages at once, even on a tmpfs that was mounted
/// without them. Linux knows it since version 6.1.
const MADV_COLLAPSE: libc::c_int = 25;

// SAFETY: the memory is only handed out as values that may be shared; see `Region::mapped`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

// SAFETY: only the drop of `_addresses` unmaps the memory, and no one else has its address.
unsafe impl Memory for Mapping {
    fn memory(&self) -> (NonNull<u8>, usize) {
        (self.start.cast(), self.len)
    }
}

impl Mapping {
    /// Maps `len` bytes that are zero. The system provides memory for each page when it is first
    /// written to.
    #[cfg(not(miri))]
    pub(crate) fn zeroed(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no memory that is in use is replaced.
        let start =
            unsafe { mmap_anonymous(core::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            start,
            len,
            _addresses: Addresses { start, len },
            _file: None,
        })
    }

    /// Maps the first `len` bytes of a file. The whole file is made present now, so that later
    /// decisions do not wait for the disk.
    ///
    /// The file is also moved into huge pages, if the kernel can do that. With small pages, a decision in
    /// a large table waits for a second access to memory: that to the page tables. A huge page must begin
    /// at a multiple of its size, both in the file and among the addresses.
    pub(crate) fn new(file: &Arc<File>, len: usize) -> io::Result<Self> {
        let addresses = Addresses::reserve(len.saturating_add(HUGE_PAGE))?;
        let skipped = addresses
            .start
            .as_ptr()
            .cast::<u8>()
            .align_offset(HUGE_PAGE);
        // SAFETY: at most the size of a huge page is skipped, and so much more than `len` is reserved.
        let start = unsafe { addresses.start.byte_add(skipped.min(HUGE_PAGE)) };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: this replaces a part of the addresses that were just reserved, which nobody uses.
        unsafe {
            mmap(
                start.as_ptr(),
                len,
                protection,
                flags | MapFlags::FIXED,
                file,
                0,
            )
        }?;
        let mapping = Self {
            start,
            len,
            _addresses: addresses,
            _file: Some(Arc::clone(file)),
        };
        mapping.make_present();
        Ok(mapping)
    }

    /// Reads the whole file into memory, and moves it into huge pages. A kernel that cannot do one of
    /// these returns an error, which is ignored: decisions are the same then, but slower.
    fn make_present(&self) {
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateRead] {
            // SAFETY: the advice changes no byte of the mapping.
            let _ = unsafe { madvise(self.start.as_ptr(), self.len, advice) };
        }
        // SAFETY: this advice changes no byte of the mapping either.
        let _ = unsafe { libc::madvise(self.start.as_ptr(), self.len, MADV_COLLAPSE) };
    }
}

impl Addresses {
    /// Reserves addresses for `len` bytes, which cannot be read or written yet and take no memory.
    fn reserve(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::empty();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, so no memory that is in use is replaced.
        let start = unsafe { mmap_anonymous(core::ptr::null_mut(), len, protection, flags) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, len })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: no region in this memory is left, since each of them keeps the mapping alive.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len) };
    }
}
