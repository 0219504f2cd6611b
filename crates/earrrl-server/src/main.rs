//! The `earrrl` binary.

mod cli;
mod plot;
mod replay;
mod simulate;
mod suggest;
mod text;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
