//! RESP2 and RESP3, the protocols of Redis clients.
//!
//! `serve` reads and writes a connection, `codec` turns bytes into requests, `batch` answers them: questions by
//! `question` and `decision`, all other commands by `dispatch`, which calls `command` and `rule_commands`.

mod batch;
pub mod codec;
mod command;
mod decision;
mod dispatch;
mod overrides;
mod question;
pub mod reply;
mod rule_commands;
pub mod serve;
pub mod session;
