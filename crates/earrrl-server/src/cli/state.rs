//! The command `earrrl state`: the state files of a directory.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use earrrl::StateError;
use earrrl::internal::{StateDirectory, StateSummary};

use super::CliFailure;

/// List, check, copy and remove the state files of a directory. All work while servers use them.
#[derive(Clone, Debug, Args)]
pub(super) struct StateArgs {
    #[command(subcommand)]
    command: StateCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum StateCommand {
    /// List the files: rule, clients, capacity, bytes, limit.
    List {
        /// The directory.
        dir: PathBuf,
    },
    /// Show all that is known of the files, also which processes use them.
    Show {
        /// The directory.
        dir: PathBuf,
    },
    /// Check the files; the exit status is 1 if one of them cannot be used.
    Check {
        /// The directory.
        dir: PathBuf,
    },
    /// Copy the files to another directory, which gets no file that it already has.
    Copy {
        /// The directory.
        dir: PathBuf,
        /// The other directory; it is created if only the last part of its path is missing.
        to: PathBuf,
    },
    /// Remove unfinished files, and files that a changed rule has left behind.
    Prune {
        /// The directory.
        dir: PathBuf,
        /// A rule whose files are removed too; may be repeated.
        #[arg(long = "rule", value_name = "NAME")]
        rules: Vec<String>,
    },
}

pub(super) fn run(args: StateArgs) -> Result<ExitCode, CliFailure> {
    let failed = |error: StateError| CliFailure::new(error.to_string());
    let line = |path: &PathBuf| format!("{}\n", path.display());
    let (text, is_good) = match args.command {
        StateCommand::List { dir } => report(&dir, row)?,
        StateCommand::Show { dir } => report(&dir, details)?,
        StateCommand::Check { dir } => {
            report(&dir, |file| format!("{}: ok\n", file.path.display()))?
        }
        StateCommand::Copy { dir, to } => {
            let copied = StateDirectory::copy(dir, to).map_err(failed)?;
            (copied.iter().map(line).collect(), true)
        }
        StateCommand::Prune { dir, rules } => {
            let removed = StateDirectory::prune(dir, &rules).map_err(failed)?;
            of_all(&removed, line)
        }
    };
    // A reader that closes the pipe early has read enough.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the text of all files of a directory, and true if all of them can be used.
fn report(
    dir: &Path,
    text: impl Fn(&StateSummary) -> String,
) -> Result<(String, bool), CliFailure> {
    let files = StateDirectory::list(dir).map_err(|error| CliFailure::new(error.to_string()))?;
    Ok(of_all(&files, text))
}

/// Returns the texts of all files, and true if none of them is an error.
fn of_all<T>(files: &[Result<T, StateError>], text: impl Fn(&T) -> String) -> (String, bool) {
    let of_file = |file: &Result<T, StateError>| match file {
        Ok(file) => text(file),
        Err(error) => format!("{error}\n"),
    };
    (
        files.iter().map(of_file).collect(),
        files.iter().all(Result::is_ok),
    )
}

fn row(file: &StateSummary) -> String {
    let StateSummary {
        name,
        clients,
        capacity,
        bytes,
        limit,
        ..
    } = file;
    format!("{name}\t{clients}\t{capacity}\t{bytes}\t{limit}\n")
}

fn details(file: &StateSummary) -> String {
    let holders = match &file.holders[..] {
        [] => "none".to_owned(),
        holders => holders.join(", "),
    };
    format!(
        "{}\n  rule: {}\n  limit: {}\n  clients: {} of {}\n  \
         unfinished insertions: {}\n  bytes: {}\n  processes: {holders}\n",
        file.path.display(),
        file.name,
        file.limit,
        file.clients,
        file.capacity,
        file.claims,
        file.bytes,
    )
}
