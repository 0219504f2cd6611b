//! The command line: a file a command.

mod failure;
mod log;
mod progress;
mod replay;
mod simulate;
mod suggest;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub(crate) use failure::Failure;

/// Estimated average recent request rate limiter: stops clients that abuse an API, and only those.
#[derive(Debug, Parser)]
#[command(name = "earrrl", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Replay(Box<replay::Args>),
    Suggest(Box<suggest::Args>),
    Simulate(Box<simulate::Args>),
}

/// A file to draw to; its ending says how.
#[cfg(feature = "plot")]
fn figure_file(name: &str) -> Result<std::path::PathBuf, String> {
    let path = std::path::PathBuf::from(name);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "png") => Ok(path),
        _ => Err("expected a name that ends in .svg or .png".into()),
    }
}

/// Runs the command that the arguments name.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error),
    };
    let result = match cli.command {
        Command::Replay(args) => replay::run(*args),
        Command::Suggest(args) => suggest::run(*args),
        Command::Simulate(args) => simulate::run(*args),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.tell(),
    }
}
