//! The arguments of `earrrl top`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::cli::log::LogArgs;
use crate::cli::server_address::ServerAddress;

/// Show the clients of a running server by rate, live; or those of state files, or of a log under rules to try
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  earrrl top --rule login
  earrrl top --once --output json
  earrrl top --state /var/lib/earrrl
  tail -F access.log | earrrl top --rule 'recent-average 1/s half-life=1m'
  earrrl top --follow access.log --config limits.toml

Keys: s sorts, / filters, p pauses, r resets the selected client, Tab shows the next rule, q quits.")]
pub(in crate::cli) struct TopArgs {
    /// The name of the rule to show, or the text of a rule to try on a log
    #[arg(long, value_name = "RULE")]
    pub(super) rule: Option<String>,

    /// A server's configuration to try on a log
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// A directory of state files, whose clients are shown by their fingerprints without asking a server
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "follow"])]
    pub(super) state: Option<PathBuf>,

    /// The server's HTTP or admin address: `http://10.0.0.5:8080`, `https://host:443`, `unix:/run/earrrl.sock`
    #[arg(
        long,
        value_name = "ADDR",
        env = "EARRRL_SERVER",
        default_value = "127.0.0.1:8080"
    )]
    pub(super) server: ServerAddress,

    /// The certificate authority of an https server, a PEM file; otherwise the system's
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,

    /// A token with the scopes `top` and `peek`, or the admin token
    #[arg(long, env = "EARRRL_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,

    /// Print one table, and end
    #[arg(long)]
    pub(super) once: bool,

    /// The form of what --once prints
    #[arg(long, value_name = "FORM", default_value = "table", requires = "once")]
    pub(super) output: TopOutput,

    /// The number of clients, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) limit: u16,

    /// The seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub(super) interval: u16,

    /// Keep reading the log while it is written, also after it was rotated
    #[arg(long, conflicts_with = "once")]
    pub(super) follow: bool,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// The forms of what `--once` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TopOutput {
    /// One row for each client
    Table,
    /// One JSON object
    Json,
}

impl TopArgs {
    /// Returns true if a log is the source instead of a server.
    pub(super) fn is_log(&self) -> bool {
        let has_text = self.rule.as_ref().is_some_and(|rule| rule.contains(' '));
        let has_files = self.log.files != [Path::new("-")];
        self.follow || has_text || has_files || self.config.is_some()
    }

    /// Returns the name of the rule to show, unless `--rule` is the text of a rule.
    pub(super) fn name(&self) -> Option<String> {
        self.rule.clone().filter(|rule| !rule.contains(' '))
    }
}
