//! How large a configuration may be, and what it means where it is silent.

/// Live clients a rule is meant for, unless the configuration says otherwise.
pub const DEFAULT_CAPACITY: usize = 1_000_000;
/// Most rules in a file.
pub const MAX_RULES: usize = 1000;
/// Largest configuration file, in bytes.
pub const MAX_FILE_LEN: u64 = 1024 * 1024;
