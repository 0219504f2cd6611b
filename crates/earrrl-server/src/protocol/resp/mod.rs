//! RESP2 and RESP3, the protocols of Redis clients.

mod answer;
mod buffers;
mod client;
pub mod codec;
mod command;
mod decide;
mod decision;
mod dispatch;
mod gather;
mod overlap;
mod question;
mod refusal;
pub mod reply;
mod reserve;
pub mod serve;
pub mod session;
mod top;
mod transaction;
