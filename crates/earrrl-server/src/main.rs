//! The `earrrl` binary.

mod address;
mod replay;

fn main() {}
