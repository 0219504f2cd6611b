//! Dispatches requests to the functions of the commands that they name.

use std::sync::Arc;

use super::codec::{Request, decode};
use super::command::{Command, known};
use super::question::{Question, decide};
use super::reply::Writer;
use super::session::{MAX_FAILED_LOGINS, Refusal, Session, Transaction};
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
        request: &Request<'_>,
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
        request: &Request<'_>,
        rules: &ActiveRules,
        out: &mut Vec<u8>,
    ) -> Result<AfterCommand, Refusal> {
        let [name, arguments @ ..] = &request.words[..] else {
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
        let version = self.version;
        let mut command = Command {
            session: self,
            arguments,
            rules,
            reply: Writer::new(out, version),
        };
        // The futures of commands are boxed, so that they take no memory in those of questions.
        match &*upper {
            b"PING" => command.ping()?,
            b"ECHO" => command.echo()?,
            b"HELLO" => command.hello()?,
            b"AUTH" => command.auth()?,
            b"RESET" => command.reset(),
            b"SELECT" => command.select()?,
            b"CLIENT" => command.client()?,
            b"COMMAND" => command.command()?,
            b"INFO" => command.info()?,
            b"EARRRL.CHECKATTR" => Box::pin(command.check_attributes()).await?,
            b"EARRRL.REFUND" => Box::pin(command.refund()).await?,
            b"EARRRL.RESERVE" => Box::pin(command.reserve()).await?,
            b"EARRRL.RENEW" => Box::pin(command.renew()).await?,
            b"EARRRL.COMMIT" => Box::pin(command.commit()).await?,
            b"EARRRL.RESET" => Box::pin(command.reset_client()).await?,
            b"EARRRL.OVERRIDE" => {
                Box::pin(command.change_override()).await?;
                return Ok(AfterCommand::Renew);
            }
            b"DEL" => Box::pin(command.del()).await?,
            b"EARRRL.TOP" => Box::pin(command.top()).await?,
            b"EARRRL.RULES" => command.list_rules()?,
            b"MULTI" => command.multi()?,
            b"DISCARD" => {
                self.end_transaction("DISCARD")?;
                Writer::new(out, self.version).simple("OK");
            }
            b"EXEC" => {
                let transaction = self.end_transaction("EXEC")?;
                Box::pin(self.execute(&transaction, out)).await?;
            }
            b"QUIT" => {
                command.reply.simple("OK");
                return Ok(AfterCommand::Close);
            }
            _ => return self.unknown(request, out),
        }
        Ok(AfterCommand::Go)
    }

    /// Queues a command for `EXEC` if the client has sent `MULTI`. Returns true if the command was
    /// queued.
    fn queue(&mut self, upper: &[u8], request: &Request<'_>) -> Result<bool, Refusal> {
        let at_once = matches!(upper, b"MULTI" | b"EXEC" | b"DISCARD" | b"RESET" | b"QUIT");
        let Some(transaction) = self.transaction.as_mut().filter(|_| !at_once) else {
            return Ok(false);
        };
        if known(upper).is_none() {
            return Ok(false);
        }
        transaction.keep(request)?;
        Ok(true)
    }

    /// Ends the client's transaction and returns its commands.
    fn end_transaction(&mut self, command: &str) -> Result<Box<Transaction>, Refusal> {
        let none = || Refusal::Error(format!("{command} without MULTI"));
        self.transaction.take().ok_or_else(none)
    }

    /// Answers `EXEC`: executes the queued commands and writes an array of their replies.
    async fn execute(
        &mut self,
        transaction: &Transaction,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if transaction.has_failed {
            return Err(Refusal::Aborted);
        }
        let server = Arc::clone(&self.server);
        Writer::new(out, self.version).array(transaction.commands);
        let mut rest = &transaction.bytes[..];
        loop {
            // A command may have changed the rules.
            let rules = server.service.rules();
            let Ok(Some(request)) = decode(rest) else {
                return Ok(());
            };
            rest = &rest[request.bytes.len()..];
            match self.question(&request, &rules) {
                Some(question) => self.answer(&question, out).await,
                None => drop(self.carry_out(&request, &rules, out).await),
            }
        }
    }

    /// Returns an error for an unknown command, or closes the connection if the command looks like
    /// HTTP. Otherwise a web page could make a browser send commands to this port in the body of an
    /// HTTP request. A request line gets a response that HTTP clients can read.
    fn unknown(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Result<AfterCommand, Refusal> {
        if request.is_inline() && request.words.iter().any(|word| word.starts_with(b"HTTP/")) {
            out.extend_from_slice(NOT_HTTP);
            return Ok(AfterCommand::Close);
        }
        if request.is_inline()
            && request
                .words
                .iter()
                .any(|word| word.eq_ignore_ascii_case(b"Host:"))
        {
            let mut reply = Writer::new(out, self.version);
            reply.error("Protocol error: this port speaks RESP, not HTTP");
            return Ok(AfterCommand::Close);
        }
        if let Some(transaction) = &mut self.transaction {
            transaction.fail();
        }
        let name = request.words.first().copied().unwrap_or_default();
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
