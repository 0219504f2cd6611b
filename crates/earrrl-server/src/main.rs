//! The `earrrl` binary.

mod cli;
mod configured;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
