//! The bounds on the size of a configuration, and the default capacity of a rule.

/// The number of clients for which a rule reserves memory by default.
pub const DEFAULT_CAPACITY: usize = 1_000_000;
/// The largest number of rules in a configuration.
pub const MAX_RULES: usize = 1000;
/// The size of the largest configuration file, in bytes.
pub const MAX_FILE_LEN: u64 = 16 * 1024 * 1024;
