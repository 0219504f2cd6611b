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

#[cfg(not(miri))]
use rustix::mm::mmap_anonymous;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::region::Memory;

/// Memory that is mapped for reading and writing. A mapped file stays open, since its locks would
/// otherwise be released.
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
    _file: Option<File>,
}

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
        Ok(Self { start, len, _file: None })
    }

    /// Maps the first `len` bytes of a file. The whole file is made present now, so that later
    /// decisions do not wait for the disk.
    pub(crate) fn new(file: File, len: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so no memory that is in use is replaced.
        let start = unsafe { mmap(core::ptr::null_mut(), len, protection, flags, &file, 0) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mapping = Self { start, len, _file: Some(file) };
        // Huge pages help only on a tmpfs that is mounted with `huge=advise`.
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateRead] {
            // The advice is an optimisation that older kernels do not know.
            // SAFETY: the advice changes no byte of the mapping.
            let _ = unsafe { madvise(mapping.start.as_ptr(), len, advice) };
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no region in this memory is left, since each of them keeps the mapping alive.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len) };
    }
}
