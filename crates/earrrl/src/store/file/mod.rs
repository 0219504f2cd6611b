//! State files: tables in files that are mapped into the memory of every process that uses them.
//!
//! # Layout
//! A file has a page with its header, a page with its clock and the shared counters of the table,
//! and then the sets of the table, exactly as they are in memory. Any 128 bits are a valid entry, so
//! a damaged file can cause wrong limits, but no crash.
//!
//! # Use
//! Every process holds a shared lock of the file for as long as it uses it; the kernel releases it
//! when the process dies. A process that finds no other user sweeps the table before anybody else
//! can open the file, since opening takes a lock of the directory.
//!
//! # Changed rules
//! The name of a file contains a tag for the meaning of its states ([`Limit::meaning`]). A rule whose states
//! get another meaning has another file, and the former one is removed once no process uses it. Under every
//! other change the processes use the same file, each under its own limit.
//!
//! [`Limit::meaning`]: crate::Limit::meaning

mod directory;
mod error;
#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
mod header;
#[cfg(target_os = "linux")]
mod holders;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod open;
#[cfg(target_os = "linux")]
pub(crate) mod records;
#[cfg(target_os = "linux")]
mod rule_text;
mod state_file;
#[cfg(target_os = "linux")]
mod tools;

pub use directory::StateDirectory;
pub use error::StateError;
#[cfg(target_os = "linux")]
pub(crate) use open::open;
pub(crate) use state_file::{FileSpec, Opened, StateFile, absolute};
#[cfg(target_os = "linux")]
pub use tools::StateSummary;

/// Returns an error, since only Linux has the locks and clocks that state files need.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open(
    wanted: &FileSpec<'_>,
    _now: impl FnOnce(crate::clock::Anchor) -> crate::clock::Nanos,
) -> Result<Opened, StateError> {
    Err(StateError::refused(
        wanted.path,
        "system",
        std::env::consts::OS,
        "linux",
    ))
}
