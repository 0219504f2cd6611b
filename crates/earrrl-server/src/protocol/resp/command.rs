//! The commands that Redis clients send besides requests for decisions: to greet, to authenticate,
//! and to ask about the server.

use super::codec::Request;
use super::reply::{Version, Writer};
use super::session::{Refusal, Session};

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

/// Returns true if the server supports a command of this name.
pub(super) fn is_known(name: &[u8]) -> bool {
    COMMANDS
        .iter()
        .any(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))
}

pub(super) fn ping(request: Request<'_, '_>, reply: &mut Writer<'_>) -> Result<(), Refusal> {
    match (request.len(), request.word(1)) {
        (1, _) => reply.simple("PONG"),
        (2, Some(message)) => reply.bulk(message),
        _ => return Err(Refusal::WordCount),
    }
    Ok(())
}

pub(super) fn echo(request: Request<'_, '_>, reply: &mut Writer<'_>) -> Result<(), Refusal> {
    match (request.len(), request.word(1)) {
        (2, Some(message)) => reply.bulk(message),
        _ => return Err(Refusal::WordCount),
    }
    Ok(())
}

/// Answers `HELLO [2|3 [AUTH user password] [SETNAME name]]`: sets the protocol's version.
pub(super) fn hello(
    session: &mut Session,
    request: Request<'_, '_>,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let version = match request.word(1) {
        None => session.version,
        Some(b"2") => Version::V2,
        Some(b"3") => Version::V3,
        Some(_) => return Err(Refusal::Version),
    };
    let mut words = request.words().skip(2);
    while let Some(option) = words.next() {
        if option.eq_ignore_ascii_case(b"AUTH") {
            let _user = words.next();
            let token = words.next();
            authenticate(session, token.ok_or(Refusal::WordCount)?)?;
        } else if option.eq_ignore_ascii_case(b"SETNAME") {
            words.next().ok_or(Refusal::WordCount)?;
        } else {
            return Err(Refusal::Error(
                "HELLO: expected AUTH user token or SETNAME name".into(),
            ));
        }
    }
    session.authenticated()?;
    session.version = version;
    greet(session, &mut Writer::new(out, version));
    Ok(())
}

fn greet(session: &Session, reply: &mut Writer<'_>) {
    reply.map(7);
    for (name, value) in [("server", "earrrl"), ("version", env!("CARGO_PKG_VERSION"))] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.integer(if reply.version() == Version::V3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(session.id as i64);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}

/// Answers `AUTH [user] token`. The user's name is ignored.
pub(super) fn auth(
    session: &mut Session,
    request: Request<'_, '_>,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    let token = match request.len() {
        2 => request.word(1),
        3 => request.word(2),
        _ => None,
    };
    let token = token.ok_or(Refusal::WordCount)?;
    if !session.server.tokens().any() {
        return Err(Refusal::Error(
            "AUTH: this server is configured without tokens".to_owned(),
        ));
    }
    authenticate(session, token)?;
    reply.simple("OK");
    Ok(())
}

/// Checks a token and grants its access. After a wrong token, the client keeps the access that it
/// already had, as in Redis.
fn authenticate(session: &mut Session, token: &[u8]) -> Result<(), Refusal> {
    if !session.show(token) {
        session.failed_logins += 1;
        session.server.service.metrics.failed_logins.increment();
        return Err(Refusal::WrongToken);
    }
    session.failed_logins = 0;
    Ok(())
}

/// Answers `RESET`: restores the session's initial state.
pub(super) fn reset(session: &mut Session, out: &mut Vec<u8>) {
    session.version = Version::V2;
    session.forget_token();
    session.transaction = None;
    Writer::new(out, session.version).simple("RESET");
}

/// Answers `SELECT`. The only database is 0.
pub(super) fn select(request: Request<'_, '_>, reply: &mut Writer<'_>) -> Result<(), Refusal> {
    match (request.len(), request.word(1)) {
        (2, Some(b"0")) => reply.simple("OK"),
        (2, _) => return Err(Refusal::Error("DB index is out of range".to_owned())),
        _ => return Err(Refusal::WordCount),
    }
    Ok(())
}

/// Answers `CLIENT`. The names and details that clients send are accepted but not stored.
pub(super) fn client(
    session: &Session,
    request: Request<'_, '_>,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    let subcommand = request
        .word(1)
        .ok_or(Refusal::WordCount)?
        .to_ascii_uppercase();
    match &subcommand[..] {
        b"SETNAME" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH" => reply.simple("OK"),
        b"GETNAME" => reply.nil(),
        b"ID" => reply.integer(session.id as i64),
        _ => return Err(Refusal::Error("CLIENT: unknown subcommand".to_owned())),
    }
    Ok(())
}

pub(super) fn command(request: Request<'_, '_>, reply: &mut Writer<'_>) -> Result<(), Refusal> {
    match request.word(1).map(<[u8]>::to_ascii_uppercase).as_deref() {
        None => {
            reply.array(COMMANDS.len());
            for (name, words) in COMMANDS {
                describe(name, words, reply);
            }
        }
        Some(b"COUNT") => reply.integer(COMMANDS.len() as i64),
        Some(b"DOCS") => reply.map(0),
        Some(b"LIST") => {
            reply.array(COMMANDS.len());
            for (name, _) in COMMANDS {
                reply.bulk(name.as_bytes());
            }
        }
        Some(b"INFO") => {
            reply.array(request.len() - 2);
            for wanted in request.words().skip(2) {
                let found = COMMANDS
                    .iter()
                    .find(|(n, _)| wanted.eq_ignore_ascii_case(n.as_bytes()));
                match found {
                    Some((name, words)) => describe(name, *words, reply),
                    None => reply.nil(),
                }
            }
        }
        Some(_) => return Err(Refusal::Error("COMMAND: unknown subcommand".to_owned())),
    }
    Ok(())
}

/// Writes a command's description for `COMMAND`: its name, number of words, flags, and the position
/// of the key, which is the second word in `CL.THROTTLE`, and the third in the `EARRRL` commands.
/// All words after the name of `DEL` are keys.
fn describe(name: &str, words: i64, reply: &mut Writer<'_>) {
    let key = match name {
        "cl.throttle" | "del" => 1,
        "earrrl.checkattr" | "earrrl.commit" | "earrrl.override" | "earrrl.renew"
        | "earrrl.rules" | "earrrl.top" => 0,
        name if name.starts_with("earrrl.") => 2,
        _ => 0,
    };
    reply.array(6);
    reply.bulk(name.as_bytes());
    reply.integer(words);
    reply.array(1);
    reply.simple("fast");
    let last = if name == "del" { -1 } else { key };
    for value in [key, last, i64::from(key > 0)] {
        reply.integer(value);
    }
}

/// Answers `INFO` with a few of the lines that Redis sends. Client libraries look for `loading`.
pub(super) fn info(session: &Session, reply: &mut Writer<'_>) -> Result<(), Refusal> {
    session.authenticated()?;
    let server = &session.server;
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
    reply.bulk(text.as_bytes());
    Ok(())
}
