//! Dispatches requests to the functions of the commands that they name; and the commands that Redis clients send
//! besides requests for decisions: to greet, to authenticate, and to ask about the server.

use std::sync::Arc;

use super::codec::{Request, decode};
use super::question::{Question, decide, is_word};
use super::reply::{Version, Writer};
use super::session::{MAX_FAILED_LOGINS, Refusal, Session, Transaction};
use crate::service::Service;
use crate::service::rule::ActiveRule;
use crate::service::rules::ActiveRules;

/// One command of a client that is no question, and the reply to it.
pub(super) struct Command<'c> {
    pub(super) session: &'c mut Session,
    /// The words behind the name of the command.
    pub(super) arguments: &'c [&'c [u8]],
    pub(super) rules: &'c ActiveRules,
    pub(super) reply: Writer<'c>,
}

/// The names of all supported commands, each with its number of words as Redis states it: negative
/// if more words are permitted.
const COMMANDS: [(&str, i64); 28] = [
    ("auth", -2),
    ("cl.throttle", -5),
    ("client", -2),
    ("command", -1),
    ("del", -2),
    ("discard", 1),
    ("earrrl.allow", -3),
    ("earrrl.charge", -3),
    ("earrrl.check", -3),
    ("earrrl.checkattr", -3),
    ("earrrl.commit", -2),
    ("earrrl.override", -3),
    ("earrrl.peek", -3),
    ("earrrl.refund", -4),
    ("earrrl.renew", -2),
    ("earrrl.reserve", -3),
    ("earrrl.reset", 3),
    ("earrrl.rules", 1),
    ("earrrl.top", 3),
    ("echo", 2),
    ("exec", 1),
    ("hello", -1),
    ("info", -1),
    ("multi", 1),
    ("ping", -1),
    ("quit", -1),
    ("reset", 1),
    ("select", 2),
];

/// Returns the supported command of this name.
pub(super) fn known(name: &[u8]) -> Option<&'static (&'static str, i64)> {
    COMMANDS
        .iter()
        .find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))
}

impl<'c> Command<'c> {
    pub(super) fn service(&self) -> &Arc<Service> {
        &self.session.server.service
    }

    /// Returns the rule of this name.
    ///
    /// # Errors
    /// Returns an error if no rule has this name, or the client's token does not permit it.
    pub(super) fn rule(&self, name: &[u8]) -> Result<&'c ActiveRule, Refusal> {
        let rule = self.rules.named(name)?;
        self.session.access.permit_rule(&rule.name)?;
        Ok(rule)
    }

    fn ping(&mut self) -> Result<(), Refusal> {
        match self.arguments {
            [] => self.reply.simple("PONG"),
            [message] => self.reply.bulk(message),
            _ => return Err(Refusal::WordCount),
        }
        Ok(())
    }

    fn echo(&mut self) -> Result<(), Refusal> {
        let [message] = self.arguments else {
            return Err(Refusal::WordCount);
        };
        self.reply.bulk(message);
        Ok(())
    }

    /// Answers `HELLO [2|3 [AUTH user password] [SETNAME name]]`: sets the protocol's version.
    fn hello(&mut self) -> Result<(), Refusal> {
        let mut words = self.arguments.iter().copied();
        let version = match words.next() {
            None => self.session.version,
            Some(b"2") => Version::V2,
            Some(b"3") => Version::V3,
            Some(_) => return Err(Refusal::Version),
        };
        while let Some(option) = words.next() {
            if is_word(option, "AUTH") {
                let _user = words.next();
                let token = words.next();
                self.session
                    .authenticate(token.ok_or(Refusal::WordCount)?)?;
            } else if is_word(option, "SETNAME") {
                words.next().ok_or(Refusal::WordCount)?;
            } else {
                return Err(Refusal::Error(
                    "HELLO: expected AUTH user token or SETNAME name".into(),
                ));
            }
        }
        self.session.authenticated()?;
        self.session.version = version;
        let reply = &mut self.reply;
        reply.version = version;
        reply.map(7);
        reply.entry("server").bulk(b"earrrl");
        reply
            .entry("version")
            .bulk(env!("CARGO_PKG_VERSION").as_bytes());
        reply
            .entry("proto")
            .integer(if version == Version::V3 { 3 } else { 2 });
        reply.entry("id").integer(self.session.id as i64);
        reply.entry("mode").bulk(b"standalone");
        reply.entry("role").bulk(b"master");
        reply.entry("modules").array(0);
        Ok(())
    }

    /// Answers `AUTH [user] token`. The user's name is ignored.
    pub(super) fn auth(&mut self) -> Result<(), Refusal> {
        let ([token] | [_, token]) = self.arguments else {
            return Err(Refusal::WordCount);
        };
        if !self.session.server.tokens().any() {
            return Err(Refusal::Error(
                "AUTH: this server is configured without tokens".to_owned(),
            ));
        }
        self.session.authenticate(token)?;
        self.reply.simple("OK");
        Ok(())
    }

    /// Answers `RESET`: restores the session's initial state.
    pub(super) fn reset(&mut self) {
        self.session.version = Version::V2;
        self.session.forget_token();
        self.session.transaction = None;
        self.reply.simple("RESET");
    }

    /// Answers `SELECT`. The only database is 0.
    pub(super) fn select(&mut self) -> Result<(), Refusal> {
        match self.arguments {
            [b"0"] => self.reply.simple("OK"),
            [_] => return Err(Refusal::Error("DB index is out of range".to_owned())),
            _ => return Err(Refusal::WordCount),
        }
        Ok(())
    }

    /// Answers `CLIENT`. The names and details that clients send are accepted but not stored.
    pub(super) fn client(&mut self) -> Result<(), Refusal> {
        let subcommand = self.arguments.first().ok_or(Refusal::WordCount)?;
        match &subcommand.to_ascii_uppercase()[..] {
            b"SETNAME" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH" => self.reply.simple("OK"),
            b"GETNAME" => self.reply.nil(),
            b"ID" => self.reply.integer(self.session.id as i64),
            _ => return Err(Refusal::Error("CLIENT: unknown subcommand".to_owned())),
        }
        Ok(())
    }

    pub(super) fn command(&mut self) -> Result<(), Refusal> {
        let [subcommand, names @ ..] = self.arguments else {
            self.reply.array(COMMANDS.len());
            for command in &COMMANDS {
                describe(command, &mut self.reply);
            }
            return Ok(());
        };
        match &subcommand.to_ascii_uppercase()[..] {
            b"COUNT" => self.reply.integer(COMMANDS.len() as i64),
            b"DOCS" => self.reply.map(0),
            b"LIST" => {
                self.reply.array(COMMANDS.len());
                for (name, _) in COMMANDS {
                    self.reply.bulk(name.as_bytes());
                }
            }
            b"INFO" => {
                self.reply.array(names.len());
                for name in names {
                    self.reply
                        .optional(known(name), |reply, command| describe(command, reply));
                }
            }
            _ => return Err(Refusal::Error("COMMAND: unknown subcommand".to_owned())),
        }
        Ok(())
    }

    /// Answers `MULTI`: begins a transaction.
    fn multi(&mut self) -> Result<(), Refusal> {
        if self.session.transaction.is_some() {
            return Err(Refusal::Error("MULTI calls can not be nested".to_owned()));
        }
        self.session.transaction = Some(Box::default());
        self.reply.simple("OK");
        Ok(())
    }

    /// Answers `INFO` with a few of the lines that Redis sends. Client libraries look for `loading`.
    pub(super) fn info(&mut self) -> Result<(), Refusal> {
        self.session.authenticated()?;
        let server = &self.session.server;
        let text = format!(
            "# Server\r\nserver_name:earrrl\r\nearrrl_version:{}\r\nuptime_in_seconds:{}\r\n\
             # Clients\r\nconnected_clients:{}\r\n# Persistence\r\nloading:0\r\n\
             # Rules\r\nrules:{}\r\nthrottle_keys_estimate:{}\r\n",
            env!("CARGO_PKG_VERSION"),
            server.uptime(),
            server.connections.len(),
            server.service.rules().len(),
            server.service.engine().throttle.table().len(),
        );
        self.reply.bulk(text.as_bytes());
        Ok(())
    }
}

/// Writes a command's description for `COMMAND`: its name, number of words, flags, and the position
/// of the key, which is the second word in `CL.THROTTLE`, and the third in the `EARRRL` commands.
/// All words after the name of `DEL` are keys.
fn describe((name, words): &(&str, i64), reply: &mut Writer<'_>) {
    let key = match *name {
        "cl.throttle" | "del" => 1,
        "earrrl.checkattr" | "earrrl.commit" | "earrrl.override" | "earrrl.renew"
        | "earrrl.rules" | "earrrl.top" => 0,
        name if name.starts_with("earrrl.") => 2,
        _ => 0,
    };
    reply.array(6);
    reply.bulk(name.as_bytes());
    reply.integer(*words);
    reply.array(1);
    reply.simple("fast");
    let last = if *name == "del" { -1 } else { key };
    for value in [key, last, i64::from(key > 0)] {
        reply.integer(value);
    }
}

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
