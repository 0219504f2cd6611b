//! The bounds of a configuration's size, and the default capacity.

/// The number of clients for which a rule reserves memory by default.
pub const DEFAULT_CAPACITY: usize = 1_000_000;
/// The largest number of rules.
pub const MAX_RULES: usize = 1000;
/// The size of the largest configuration file, in bytes.
pub const MAX_FILE_LEN: u64 = 1024 * 1024;
