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

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::region::Memory;

/// Memory that is mapped for reading and writing. A mapped file stays open, since its locks would
/// otherwise be released.
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
    /// The address range that is unmapped at the end, in which the memory lies.
    range: (NonNull<c_void>, usize),
    _file: Option<File>,
}

/// The size of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// The advice to put memory into huge pages now, also on a tmpfs whose mount options ask for none. Linux
/// has it since 6.1.
const MADV_COLLAPSE: libc::c_int = 25;

// SAFETY: the memory is only handed out as values that may be shared; see `Region::mapped`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

// SAFETY: `drop` unmaps the range, and no one else has its address.
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
        Ok(Self { start, len, range: (start, len), _file: None })
    }

    /// Maps the first `len` bytes of a file. The whole file is made present now, so that later
    /// decisions do not wait for the disk.
    ///
    /// The file is put into huge pages where the system has them, since a decision in a large table
    /// otherwise waits for an entry of the page tables, too. Its memory was allocated as the mount options
    /// say, which usually means small pages; a huge page must begin at a multiple of its size in
    /// the file and in the address space.
    pub(crate) fn new(file: File, len: usize) -> io::Result<Self> {
        let reserved = len.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, so no memory that is in use is replaced.
        let base =
            unsafe { mmap_anonymous(core::ptr::null_mut(), reserved, ProtFlags::empty(), flags) }?;
        let base = NonNull::new(base).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let skipped = base.as_ptr().cast::<u8>().align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // SAFETY: `skipped` is at most the size of a huge page, by which `reserved` exceeds `len`.
        let start = unsafe { base.byte_add(skipped) };
        let mut mapping = Self { start, len, range: (base, reserved), _file: None };
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the range that is replaced lies in the one that was reserved, which nobody uses.
        unsafe { mmap(start.as_ptr(), len, protection, flags | MapFlags::FIXED, &file, 0) }?;
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateRead] {
            // The advice is an optimisation that older kernels do not know.
            // SAFETY: the advice changes no byte of the mapping.
            let _ = unsafe { madvise(start.as_ptr(), len, advice) };
        }
        // SAFETY: as above; the kernel checks the range.
        let _ = unsafe { libc::madvise(start.as_ptr(), len, MADV_COLLAPSE) };
        mapping._file = Some(file);
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no region in this memory is left, since each of them keeps the mapping alive.
        let _ = unsafe { munmap(self.range.0.as_ptr(), self.range.1) };
    }
}
