//! The C library's allocator, which keeps freed memory unless it is asked not to.
#![allow(unsafe_code)]

/// Blocks of this size and more come from the system, and go back to it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: i32 = 1 << 20;

/// Makes the memory of a dropped table go back to the system at once. glibc would do so for the
/// first ones only: each large block that is freed raises the size from which blocks are mapped by
/// themselves, up to 32 MiB, and tables below that would then stay with the process, one an arena.
pub fn give_back_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets a parameter of the allocator, which takes its own lock for that.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Returns free memory to the system. glibc does so by itself at the end of its arenas only: one small
/// block that is still in use keeps all that was freed before it.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
