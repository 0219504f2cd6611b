//! The commands that Redis clients send besides requests for decisions: to greet, to authenticate,
//! and to ask about the server.

use std::sync::Arc;

use super::question::is_word;
use super::reply::{Version, Writer};
use super::session::{Refusal, Session};
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

    pub(super) fn ping(&mut self) -> Result<(), Refusal> {
        match self.arguments {
            [] => self.reply.simple("PONG"),
            [message] => self.reply.bulk(message),
            _ => return Err(Refusal::WordCount),
        }
        Ok(())
    }

    pub(super) fn echo(&mut self) -> Result<(), Refusal> {
        let [message] = self.arguments else {
            return Err(Refusal::WordCount);
        };
        self.reply.bulk(message);
        Ok(())
    }

    /// Answers `HELLO [2|3 [AUTH user password] [SETNAME name]]`: sets the protocol's version.
    pub(super) fn hello(&mut self) -> Result<(), Refusal> {
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
    pub(super) fn multi(&mut self) -> Result<(), Refusal> {
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
