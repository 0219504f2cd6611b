//! The command `earrrl completions`.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use super::CliFailure;

/// Print a shell's completion script.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  earrrl completions bash > /etc/bash_completion.d/earrrl")]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(super) fn run(args: CompletionsArgs, command: &mut Command) -> Result<ExitCode, CliFailure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "earrrl", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}
