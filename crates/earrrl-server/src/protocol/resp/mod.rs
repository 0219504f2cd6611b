//! RESP2 and RESP3, the protocols of Redis clients.
//!
//! `serve` reads and writes a connection, `codec` turns bytes into requests, `batch` answers them: questions by
//! `question`, all other commands by `command` and, if they concern rules, `rule_commands`. `reply` writes the answers.

mod batch;
pub mod codec;
mod command;
mod question;
pub mod reply;
mod rule_commands;
pub mod serve;
pub mod session;
