//! The `earrrl` binary.
fn main() {}
