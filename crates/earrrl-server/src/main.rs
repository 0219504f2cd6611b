//! The `earrrl` binary.

mod address;
mod cli;
#[cfg(feature = "plot")]
mod plot;
mod replay;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
