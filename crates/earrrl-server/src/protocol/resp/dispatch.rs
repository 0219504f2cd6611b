//! Dispatches requests to the functions of the commands that they name.

use std::sync::Arc;

use super::codec::{Decoder, Request};
use super::question::{Question, decide};
use super::reply::Writer;
use super::session::{MAX_FAILED_LOGINS, Refusal, Session, Transaction};
use super::{command, overrides, rule_commands};
use crate::service::rules::ActiveRules;

/// The commands with which libraries run rate limiting scripts on Redis.
const SCRIPTS: [&[u8]; 7] = [
    b"EVAL",
    b"EVALSHA",
    b"EVAL_RO",
    b"EVALSHA_RO",
    b"FCALL",
    b"FUNCTION",
    b"SCRIPT",
];
/// The error for a command in `SCRIPTS`.
const SCRIPT_HINT: &str = "this server runs no scripts: it decides itself, by CL.THROTTLE or \
                           EARRRL.CHECK; docs/clients.md shows how to call these from each client \
                           library";

/// The response to an HTTP request, in its protocol.
const NOT_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n\
                          content-length: 153\r\nconnection: close\r\n\r\n\
                          {\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
                          \"detail\":\"this port is for Redis clients (RESP); `http` sets the one for HTTP, \
                          8080 by default\"}";

/// The connection's next step after a command was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterCommand {
    /// Read the next request.
    Go,
    /// Read the next request, which is decided under the rules that are active by then.
    Renew,
    /// Close the connection.
    Close,
}

impl Session {
    /// Answers a question (a request for a decision), with its decision or an error.
    #[inline]
    pub(super) async fn answer(&self, question: &Question<'_>, out: &mut Vec<u8>) {
        let length = out.len();
        if let Err(refusal) = decide(self, question, out).await {
            out.truncate(length);
            self.refuse(&refusal, out);
        }
    }

    /// Executes a command that is not a question, or queues it for `EXEC` after `MULTI`.
    pub(super) async fn carry_out(
        &mut self,
        request: Request<'_, '_>,
        rules: &ActiveRules,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let length = out.len();
        let done = match self.run_command(request, rules, out).await {
            Ok(next) => next,
            Err(refusal) => {
                out.truncate(length);
                self.refuse(&refusal, out);
                AfterCommand::Go
            }
        };
        if self.failed_logins >= MAX_FAILED_LOGINS {
            AfterCommand::Close
        } else {
            done
        }
    }

    async fn run_command(
        &mut self,
        request: Request<'_, '_>,
        rules: &ActiveRules,
        out: &mut Vec<u8>,
    ) -> Result<AfterCommand, Refusal> {
        let Some(name) = request.word(0) else {
            return Ok(AfterCommand::Go);
        };
        let mut upper = [0; 16];
        let Some(upper) = upper.get_mut(..name.len()) else {
            return self.unknown(request, out);
        };
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        if self.queue(upper, request)? {
            Writer::new(out, self.version).simple("QUEUED");
            return Ok(AfterCommand::Go);
        }
        let known = self.run_connection_command(upper, request, out)?
            || self.run_rule_command(upper, request, rules, out).await?;
        match &*upper {
            b"EARRRL.OVERRIDE" => return Ok(AfterCommand::Renew),
            _ if known => {}
            b"MULTI" => self.begin(&mut Writer::new(out, self.version))?,
            b"DISCARD" => {
                self.transaction
                    .take()
                    .ok_or_else(|| without_multi("DISCARD"))?;
                Writer::new(out, self.version).simple("OK");
            }
            b"EXEC" => {
                let transaction = self
                    .transaction
                    .take()
                    .ok_or_else(|| without_multi("EXEC"))?;
                Box::pin(self.execute(&transaction, out)).await?;
            }
            b"QUIT" => {
                Writer::new(out, self.version).simple("OK");
                return Ok(AfterCommand::Close);
            }
            _ => return self.unknown(request, out),
        }
        Ok(AfterCommand::Go)
    }

    /// Executes a command about the connection or the server. Returns false if it is no such
    /// command.
    fn run_connection_command(
        &mut self,
        upper: &[u8],
        request: Request<'_, '_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Refusal> {
        let mut reply = Writer::new(out, self.version);
        match upper {
            b"PING" => command::ping(request, &mut reply)?,
            b"ECHO" => command::echo(request, &mut reply)?,
            b"HELLO" => command::hello(self, request, out)?,
            b"AUTH" => command::auth(self, request, &mut reply)?,
            b"RESET" => command::reset(self, out),
            b"SELECT" => command::select(request, &mut reply)?,
            b"CLIENT" => command::client(self, request, &mut reply)?,
            b"COMMAND" => command::command(request, &mut reply)?,
            b"INFO" => command::info(self, &mut reply)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Executes a command about rules or their clients. Returns false if it is no such command.
    async fn run_rule_command(
        &self,
        upper: &[u8],
        request: Request<'_, '_>,
        rules: &ActiveRules,
        out: &mut Vec<u8>,
    ) -> Result<bool, Refusal> {
        let mut reply = Writer::new(out, self.version);
        match upper {
            b"EARRRL.CHECKATTR" => {
                Box::pin(rule_commands::check_attributes(self, request, rules, out)).await?;
            }
            b"EARRRL.REFUND" => rule_commands::refund(self, request, rules, &mut reply).await?,
            b"EARRRL.RESERVE" => {
                Box::pin(rule_commands::reserve(self, request, rules, out)).await?
            }
            b"EARRRL.RENEW" => rule_commands::renew(self, request, &mut reply).await?,
            b"EARRRL.COMMIT" => Box::pin(rule_commands::commit(self, request, rules, out)).await?,
            b"EARRRL.RESET" => rule_commands::reset(self, request, rules, &mut reply).await?,
            b"EARRRL.OVERRIDE" => Box::pin(overrides::answer(self, request, &mut reply)).await?,
            b"DEL" => Box::pin(rule_commands::del(self, request, &mut reply)).await?,
            b"EARRRL.TOP" => Box::pin(rule_commands::top(self, request, &mut reply)).await?,
            b"EARRRL.RULES" => rule_commands::rules(self, rules, &mut reply)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Queues a command for `EXEC` if the client has sent `MULTI`. Returns true if the command was
    /// queued.
    fn queue(&mut self, upper: &[u8], request: Request<'_, '_>) -> Result<bool, Refusal> {
        let at_once = matches!(upper, b"MULTI" | b"EXEC" | b"DISCARD" | b"RESET" | b"QUIT");
        let Some(transaction) = self.transaction.as_mut().filter(|_| !at_once) else {
            return Ok(false);
        };
        if !command::is_known(upper) {
            return Ok(false);
        }
        transaction.keep(request)?;
        Ok(true)
    }

    fn begin(&mut self, reply: &mut Writer<'_>) -> Result<(), Refusal> {
        if self.transaction.is_some() {
            return Err(Refusal::Error("MULTI calls can not be nested".to_owned()));
        }
        self.transaction = Some(Box::new(Transaction::default()));
        reply.simple("OK");
        Ok(())
    }

    /// Answers `EXEC`: executes the queued commands and writes an array of their replies.
    async fn execute(
        &mut self,
        transaction: &Transaction,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if transaction.has_failed() {
            return Err(Refusal::Aborted);
        }
        let server = Arc::clone(&self.server);
        Writer::new(out, self.version).array(transaction.len());
        let mut start = 0;
        let mut decoder = Decoder::default();
        while let Some((request, next)) = transaction.next(start, &mut decoder) {
            // A command may have changed the rules.
            let rules = server.service.rules();
            match self.question(request, &rules) {
                Some(question) => self.answer(&question, out).await,
                None => drop(self.carry_out(request, &rules, out).await),
            }
            start = next;
        }
        Ok(())
    }

    /// Returns an error for an unknown command, or closes the connection if the command looks like
    /// HTTP. Otherwise a web page could make a browser send commands to this port in the body of an
    /// HTTP request. A request line gets a response that HTTP clients can read.
    fn unknown(
        &mut self,
        request: Request<'_, '_>,
        out: &mut Vec<u8>,
    ) -> Result<AfterCommand, Refusal> {
        if request.is_inline() && request.words().any(|word| word.starts_with(b"HTTP/")) {
            out.extend_from_slice(NOT_HTTP);
            return Ok(AfterCommand::Close);
        }
        if request.is_inline()
            && request
                .words()
                .any(|word| word.eq_ignore_ascii_case(b"Host:"))
        {
            let mut reply = Writer::new(out, self.version);
            reply.error("Protocol error: this port speaks RESP, not HTTP");
            return Ok(AfterCommand::Close);
        }
        if let Some(transaction) = &mut self.transaction {
            transaction.fail();
        }
        let name = request.word(0).unwrap_or_default();
        let shown =
            name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'.') && name.len() <= 32;
        if SCRIPTS
            .iter()
            .any(|script| name.eq_ignore_ascii_case(script))
        {
            return Err(Refusal::Error(SCRIPT_HINT.to_owned()));
        }
        match std::str::from_utf8(name) {
            Ok(name) if shown => Err(Refusal::Error(format!("unknown command '{name}'"))),
            _ => Err(Refusal::Error("unknown command".to_owned())),
        }
    }

    #[cold]
    pub(super) fn refuse(&self, refusal: &Refusal, out: &mut Vec<u8>) {
        let (code, text) = refusal.shown();
        self.server.service.metrics.count_error(code);
        Writer::new(out, self.version).error_code(code, text);
    }
}

fn without_multi(command: &str) -> Refusal {
    Refusal::Error(format!("{command} without MULTI"))
}
