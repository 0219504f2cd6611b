//! Settings of the C library's allocator, so that it returns freed memory to the system.
#![allow(unsafe_code)]

/// The size in bytes from which blocks are mapped from the system one by one, and unmapped when
/// they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: i32 = 1 << 20;

/// Makes the allocator return the memory of a dropped table to the system at once. By default glibc
/// raises the size from which it maps blocks one by one, up to 32 MiB, each time such a block is
/// freed. The memory of smaller tables would then stay with the process.
pub fn give_back_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` sets a parameter of the allocator, and takes the allocator's lock for that.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Returns free memory to the system. By itself glibc returns only the free memory at the end of an
/// arena, so that one small block in use there keeps all freed memory before it.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes the allocator's own locks, and touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
