//! Environment variables for the options of the commands that read logs: `EARRRL_SUGGEST_HALF_LIFE`
//! sets `--half-life` of `suggest`. The name contains the command, so that variables of the server,
//! whose options have the same names, do not apply.

use clap::error::ContextKind;
use clap::{Arg, ArgAction, Command, Error};
use earrrl::internal::nearest;

/// The commands whose options can be set by environment variables.
const COMMANDS: [&str; 3] = ["replay", "suggest", "simulate"];

/// The options that may be repeated; a variable separates their values by semicolons.
const SEVERAL: [&str; 3] = ["rule", "client", "cost"];

/// Adds the environment variables to the options of a command, and takes negative numbers as values.
pub(super) fn with_variables(command: Command) -> Command {
    // A negative number is a wrong value and no unknown option.
    let number = |arg: Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    let command = command.mut_subcommands(|found| found.mut_args(number));
    COMMANDS.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |found| found.mut_args(|arg| with_variable(name, arg)))
    })
}

fn with_variable(command: &str, arg: Arg) -> Arg {
    let Some(option) = arg.get_long().filter(|long| *long != "help") else {
        return arg;
    };
    let variable = format!("EARRRL_{command}_{option}")
        .to_ascii_uppercase()
        .replace('-', "_");
    let several = SEVERAL.contains(&option);
    let flag = matches!(arg.get_action(), ArgAction::SetTrue);
    // The manual describes the variables once, so they are hidden in the help of each option.
    let arg = arg.env(variable).hide_env(true);
    match (several, flag) {
        (true, _) => arg.value_delimiter(';'),
        (_, true) => arg.value_parser(truth),
        _ => arg,
    }
}

/// Returns a warning for each environment variable that begins like those of this program, but is none of them.
/// Kubernetes sets `EARRRL_SERVICE_…` and `EARRRL_PORT…` for a service of this name.
pub(super) fn unknown_variables(command: &Command) -> Vec<String> {
    let args = command.get_subcommands().flat_map(Command::get_arguments);
    let known: Vec<String> = args
        .filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned()))
        .collect();
    let is_of_kubernetes =
        |name: &str| name.starts_with("EARRRL_SERVICE_") || name.starts_with("EARRRL_PORT");
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    set.filter(|name| {
        name.starts_with("EARRRL_") && !known.contains(name) && !is_of_kubernetes(name)
    })
    .map(|name| {
        let suggestion = nearest(&name, known.iter().map(String::as_str));
        let suggestion = suggestion.map(|known| format!("; did you mean {known}?"));
        format!(
            "the environment variable {name} sets no option{}",
            suggestion.unwrap_or_default()
        )
    })
    .collect()
}

/// Parses the variable of an option that is on or off. An empty variable is off, as if it were not set.
pub(super) fn truth(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "" | "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// Returns the name of the environment variable that has the value which an error refuses; `None` if the
/// value is one of the arguments.
pub(super) fn refused_variable(error: &Error, command: &Command) -> Option<String> {
    let context = |kind| error.get(kind).map(ToString::to_string);
    let option = context(ContextKind::InvalidArg)?;
    let option = option.split_whitespace().next()?.trim_start_matches("--");
    let value = context(ContextKind::InvalidValue)?;
    let named = command
        .get_subcommands()
        .find(|known| std::env::args().any(|word| word == known.get_name()))?;
    let arg = named
        .get_arguments()
        .find(|arg| arg.get_long() == Some(option))?;
    let variable = arg.get_env()?;
    let is_it = std::env::var(variable).is_ok_and(|set| set.split(';').any(|part| part == value));
    is_it.then(|| variable.to_string_lossy().into_owned())
}
