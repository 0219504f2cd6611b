//! The `earrrl` binary.

mod address;
mod cli;
#[cfg(feature = "plot")]
mod plot;
mod replay;
mod simulate;
mod suggest;
mod text;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
