//! `earrrl config check`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use earrrl_server::config::Config;

use super::{Failure, failure};

/// Look at a configuration without serving it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  earrrl config check limits.toml")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tell everything that is wrong with a file: file:line:column: what, and what would be right.
    Check {
        /// The configuration.
        file: PathBuf,
    },
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let Command::Check { file } = args.command;
    let config = Config::load(&file).map_err(|error| failure::lines(&error.to_string()))?;
    if let Some(why) = config.server.exposed() {
        return Err(Failure::new(why));
    }
    writeln!(std::io::stdout(), "{}: {} rules, good", file.display(), config.rules.len())?;
    Ok(ExitCode::SUCCESS)
}
