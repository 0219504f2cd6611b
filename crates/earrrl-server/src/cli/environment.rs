//! Environment variables for the options of the commands that read logs: `EARRRL_SUGGEST_HALF_LIFE`
//! sets `--half-life` of `suggest`. The name contains the command, so that variables of the server,
//! whose options have the same names, do not apply.

use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, Command};

/// The commands whose options can be set by environment variables.
const COMMANDS: [&str; 3] = ["replay", "suggest", "simulate"];

/// The options that may be repeated; a variable separates their values by semicolons.
const SEVERAL: [&str; 3] = ["rule", "client", "cost"];

/// Adds the environment variables to the options of a command.
pub(super) fn with_variables(command: Command) -> Command {
    COMMANDS.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |found| found.mut_args(|arg| with_variable(name, arg)))
    })
}

fn with_variable(command: &str, arg: Arg) -> Arg {
    let Some(option) = arg.get_long().filter(|long| *long != "help") else { return arg };
    let variable = format!("EARRRL_{command}_{option}").to_ascii_uppercase().replace('-', "_");
    let several = SEVERAL.contains(&option);
    let flag = matches!(arg.get_action(), ArgAction::SetTrue);
    // The manual describes the variables once, so they are hidden in the help of each option.
    let arg = arg.env(variable).hide_env(true);
    match (several, flag) {
        (true, _) => arg.value_delimiter(';'),
        (_, true) => arg.value_parser(FalseyValueParser::new()),
        _ => arg,
    }
}
