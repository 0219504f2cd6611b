//! What the server remembers of one client, and which command is which.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::codec::Request;
use super::reply::{Version, Writer};
use super::{command, decide};
use crate::config::access::Access;
use crate::server::Server;
use crate::service::rules::RuleSet;
use earrrl::Mode;

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next request.
    Go,
    /// The end of the connection.
    Close,
}

/// One client.
#[derive(Debug)]
pub struct Session {
    /// The server it is connected to.
    pub server: Arc<Server>,
    pub(super) version: Version,
    pub(super) access: Access,
    pub(super) id: usize,
    /// Where its last rule was found: the next one is most likely the same.
    pub(super) last_rule: AtomicUsize,
}

/// Why a command is not carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Something is wrong with it.
    Error(String),
    /// It has too few words or too many.
    WordCount,
    /// No token was shown.
    Unauthenticated,
    /// The token shown is not good for it.
    Forbidden,
}

impl Session {
    /// A client that has shown no token; `id` tells it from the others that are connected.
    pub fn new(server: Arc<Server>, id: usize) -> Self {
        let access = server.config.tokens.without();
        Self { server, version: Version::V2, access, id, last_rule: AtomicUsize::new(0) }
    }

    /// The version the client asked for.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Carries out one request and appends its reply.
    #[inline]
    pub async fn answer(
        &mut self,
        request: Request<'_>,
        rules: &RuleSet,
        out: &mut Vec<u8>,
    ) -> Next {
        let Some(name) = request.word(0) else { return Next::Go };
        let length = out.len();
        let result = if is_throttle(name) {
            decide::throttle(self, request, &mut Writer::new(out, self.version))
        } else if name.eq_ignore_ascii_case(b"EARRRL.CHECK") {
            decide::ask(self, request, rules, Mode::Check, out).await
        } else {
            match self.seldom(name, request, rules, out).await {
                Ok(Next::Go) => Ok(()),
                Ok(Next::Close) => return Next::Close,
                Err(refusal) => Err(refusal),
            }
        };
        if let Err(refusal) = result {
            out.truncate(length);
            refuse(&refusal, &mut Writer::new(out, self.version));
        }
        Next::Go
    }

    /// Whether a request changes nothing but what it asks about.
    pub(super) fn overlaps(request: Request<'_>) -> bool {
        request.word(0).is_some_and(|name| mode(name).is_some() || is_throttle(name))
    }

    /// Begins to fetch what a request that [`Session::overlaps`] is about, where that is in memory.
    #[inline]
    pub(super) fn prefetch(&self, request: Request<'_>, rules: &RuleSet) {
        if self.may(Access::Ask).is_ok() && !self.server.service.engine().waits() {
            decide::prefetch(self, request, rules);
        }
    }

    /// Answers a request that [`Session::overlaps`].
    pub(super) async fn question(&self, request: Request<'_>, rules: &RuleSet, out: &mut Vec<u8>) {
        let answer = match request.word(0).and_then(mode) {
            Some(mode) => decide::ask(self, request, rules, mode, out).await,
            None => decide::throttle_shared(self, request, out).await,
        };
        if let Err(refusal) = answer {
            out.clear();
            refuse(&refusal, &mut Writer::new(out, self.version));
        }
    }

    async fn seldom(
        &mut self,
        name: &[u8],
        request: Request<'_>,
        rules: &RuleSet,
        out: &mut Vec<u8>,
    ) -> Result<Next, Refusal> {
        let mut upper = [0; 16];
        let Some(upper) = upper.get_mut(..name.len()) else {
            return unknown(request, &mut Writer::new(out, self.version));
        };
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        let mut reply = Writer::new(out, self.version);
        match &*upper {
            b"PING" => command::ping(request, &mut reply)?,
            b"ECHO" => command::echo(request, &mut reply)?,
            b"HELLO" => command::hello(self, request, out)?,
            b"AUTH" => command::auth(self, request, &mut reply)?,
            b"RESET" => command::reset(self, out),
            b"SELECT" => command::select(request, &mut reply)?,
            b"CLIENT" => command::client(self, request, &mut reply)?,
            b"COMMAND" => command::command(request, &mut reply)?,
            b"INFO" => command::info(self, &mut reply)?,
            b"EARRRL.PEEK" => decide::ask(self, request, rules, Mode::Peek, out).await?,
            b"EARRRL.REFUND" => decide::refund(self, request, rules, &mut reply).await?,
            b"EARRRL.RESET" => decide::reset(self, request, rules, &mut reply).await?,
            b"EARRRL.RULES" => decide::rules(self, rules, &mut reply)?,
            b"QUIT" => {
                reply.simple("OK");
                return Ok(Next::Close);
            }
            _ => return unknown(request, &mut reply),
        }
        Ok(Next::Go)
    }

    /// Whether the client may do what needs this access.
    #[inline]
    pub(super) fn may(&self, needed: Access) -> Result<(), Refusal> {
        match self.access {
            access if access >= needed => Ok(()),
            Access::Nothing => Err(Refusal::Unauthenticated),
            _ => Err(Refusal::Forbidden),
        }
    }
}

#[inline]
pub(super) fn is_throttle(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"CL.THROTTLE")
}

/// What a command asks, if it asks.
fn mode(name: &[u8]) -> Option<Mode> {
    if name.eq_ignore_ascii_case(b"EARRRL.CHECK") {
        return Some(Mode::Check);
    }
    name.eq_ignore_ascii_case(b"EARRRL.PEEK").then_some(Mode::Peek)
}

/// An unknown command is an error, and HTTP sent to this port the end: a web page must not be able
/// to have a browser's request body taken for commands.
fn unknown(request: Request<'_>, reply: &mut Writer<'_>) -> Result<Next, Refusal> {
    let is_http = |word: &[u8]| word.starts_with(b"HTTP/") || word.eq_ignore_ascii_case(b"Host:");
    if request.is_inline() && request.words().any(is_http) {
        reply.error("Protocol error: this port speaks RESP, not HTTP");
        return Ok(Next::Close);
    }
    let name = request.word(0).unwrap_or_default();
    let shown = name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'.') && name.len() <= 32;
    match std::str::from_utf8(name) {
        Ok(name) if shown => Err(Refusal::Error(format!("unknown command '{name}'"))),
        _ => Err(Refusal::Error("unknown command".to_owned())),
    }
}

#[cold]
fn refuse(refusal: &Refusal, reply: &mut Writer<'_>) {
    match refusal {
        Refusal::Error(text) => reply.error(text),
        Refusal::WordCount => reply.error("wrong number of arguments for this command"),
        Refusal::Unauthenticated => reply.error_code("NOAUTH", "Authentication required."),
        Refusal::Forbidden => reply.error_code("NOPERM", "this needs the admin token"),
    }
}
