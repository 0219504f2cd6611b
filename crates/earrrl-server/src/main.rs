//! The `earrrl` binary.

mod address;
mod cli;
mod replay;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
