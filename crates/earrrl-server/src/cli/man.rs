//! `earrrl man`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Command;

use super::Failure;

/// Write the manual pages, one for each command, into a folder.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  earrrl man /usr/local/share/man/man1")]
pub(super) struct Args {
    /// The folder, which must exist.
    folder: PathBuf,
}

pub(super) fn run(args: &Args, command: Command) -> Result<ExitCode, Failure> {
    clap_mangen::generate_to(command, &args.folder)?;
    Ok(ExitCode::SUCCESS)
}
