//! Options of the commands that read logs, as variables of the environment: `--half-life` of `suggest`
//! is `EARRRL_SUGGEST_HALF_LIFE`. The command is in the name, so that a server's own variables, whose
//! options have the same names, do not count.

use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, Command};

/// The commands whose options are variables, too.
const COMMANDS: [&str; 3] = ["replay", "suggest", "simulate"];

/// Options that may be given several times, and in a variable with semicolons between them.
const SEVERAL: [&str; 3] = ["rule", "client", "cost"];

/// A command line whose options are read from variables as well.
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
    // Named once, in the manual: otherwise each option takes a line more.
    let arg = arg.env(variable).hide_env(true);
    match (several, flag) {
        (true, _) => arg.value_delimiter(';'),
        (_, true) => arg.value_parser(FalseyValueParser::new()),
        _ => arg,
    }
}
