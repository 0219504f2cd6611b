//! The command line; each command has a file.

mod attributes;
mod check;
mod completions;
mod config;
mod demo;
mod environment;
mod failure;
mod figure;
mod http_client;
mod log;
mod man;
mod progress;
mod replay;
mod replay_config;
mod serve;
mod simulate;
mod state;
mod suggest;
mod terms;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub(crate) use failure::CliFailure;

/// Estimated average recent request rate limiter: stops clients that abuse an API, and only those.
#[derive(Debug, Parser)]
#[command(
    name = "earrrl",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Serve(Box<serve::ServeArgs>),
    Check(check::CheckArgs),
    Config(config::ConfigArgs),
    Suggest(Box<suggest::SuggestArgs>),
    Replay(Box<replay::ReplayArgs>),
    Simulate(Box<simulate::SimulateArgs>),
    State(state::StateArgs),
    Top(Box<top::TopArgs>),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// Runs the command that the arguments name.
pub(crate) fn run() -> ExitCode {
    let command = environment::with_variables(Cli::command());
    let matches = command.clone().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error, &command),
    };
    let result = match cli.command {
        Command::Replay(args) => match &args.config {
            Some(path) => replay_config::run(&args, path),
            None => replay::run(*args),
        },
        Command::Serve(args) => serve::run(*args, &environment::unknown_variables(&command)),
        Command::Demo(args) => demo::run(&args),
        Command::Check(args) => check::run(args),
        Command::Config(args) => config::run(args),
        Command::State(args) => state::run(args),
        Command::Completions(args) => completions::run(args, &mut Cli::command()),
        Command::Man(args) => man::run(&args, command),
        Command::Suggest(args) => suggest::run(*args),
        Command::Simulate(args) => simulate::run(*args),
        Command::Top(args) => top::run(*args),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
