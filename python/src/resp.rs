//! A client of a server's RESP port: connections that are kept, one command at a time on each.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The longest wait for a connection, and for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most connections that are kept while they are not used.
const MOST_IDLE: usize = 16;
/// The longest line of an answer, in bytes, and the most values in it.
const LONGEST_LINE: u64 = 4096;
const MOST_VALUES: usize = 64;

/// A server's address.
pub(crate) enum Address {
    /// A host with a port.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => f.write_str(host),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The connections to a server.
pub(crate) struct Connections {
    pub(crate) address: Address,
    token: Option<String>,
    idle: Mutex<Idle>,
}

/// The connections that are not used. They belong to one process: a child must not share them.
#[derive(Default)]
struct Idle {
    process: u32,
    connections: Vec<Connection>,
}

type Connection = BufReader<Box<dyn Socket>>;

trait Socket: Read + Write + Send {}
impl<S: Read + Write + Send> Socket for S {}

/// The values of an answer by their names; `None` is nil.
pub(crate) type Answer = HashMap<String, Option<String>>;

impl Connections {
    /// Returns the connections to a server, none of which is open yet.
    pub(crate) fn new(address: Address, token: Option<String>) -> Self {
        Self {
            address,
            token,
            idle: Mutex::default(),
        }
    }

    /// Sends a command and returns its answer. A connection that the server has closed meanwhile is
    /// replaced by a new one.
    ///
    /// # Errors
    /// Returns an error if the server is not reached, does not answer, or refuses the command.
    pub(crate) fn ask(&self, command: &[&str]) -> io::Result<Answer> {
        let kept = self.take();
        let is_kept = kept.is_some();
        let mut connection = kept.map_or_else(|| self.connect(), Ok)?;
        let answer = match exchange(&mut connection, command) {
            Err(error) if is_kept && error.kind() == io::ErrorKind::UnexpectedEof => {
                connection = self.connect()?;
                exchange(&mut connection, command)
            }
            answer => answer,
        };
        if answer.is_ok() {
            self.keep(connection);
        }
        answer
    }

    fn connect(&self) -> io::Result<Connection> {
        let mut connection = BufReader::new(open(&self.address)?);
        if let Some(token) = &self.token {
            exchange(&mut connection, &["AUTH", token])?;
        }
        Ok(connection)
    }

    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.process != std::process::id() {
            *idle = Idle {
                process: std::process::id(),
                connections: Vec::new(),
            };
        }
        idle.connections.pop()
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.connections.len() < MOST_IDLE {
            idle.connections.push(connection);
        }
    }
}

fn open(address: &Address) -> io::Result<Box<dyn Socket>> {
    match address {
        Address::Tcp(address) => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            for address in address.to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, PATIENCE) {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        stream.set_read_timeout(Some(PATIENCE))?;
                        stream.set_write_timeout(Some(PATIENCE))?;
                        return Ok(Box::new(stream));
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
        #[cfg(unix)]
        Address::Unix(path) => {
            let stream = std::os::unix::net::UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(Box::new(stream))
        }
        #[cfg(not(unix))]
        Address::Unix(path) => Err(io::Error::other(format!(
            "{}: this system has no Unix sockets",
            path.display()
        ))),
    }
}

fn exchange(connection: &mut Connection, command: &[&str]) -> io::Result<Answer> {
    let mut request = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        request.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    // A kept connection may be closed by now, which the reading then shows.
    let written = connection.get_mut().write_all(&request);
    let answer = read(connection);
    if answer.is_err() {
        written.and(answer)
    } else {
        answer
    }
}

/// Reads an answer: a word, or an array of names and values.
fn read(connection: &mut Connection) -> io::Result<Answer> {
    let head = line(connection)?;
    let count = match head.split_at_checked(1) {
        Some(("+", _)) => return Ok(Answer::new()),
        Some(("-", refusal)) => return Err(io::Error::other(refusal)),
        Some(("*", count)) => count
            .parse::<usize>()
            .ok()
            .filter(|count| *count <= MOST_VALUES),
        _ => None,
    };
    let mut answer = Answer::new();
    for _ in 0..count.ok_or_else(unknown)? / 2 {
        let name = value(connection)?.ok_or_else(unknown)?;
        answer.insert(name, value(connection)?);
    }
    Ok(answer)
}

fn value(connection: &mut Connection) -> io::Result<Option<String>> {
    let head = line(connection)?;
    match head.split_at_checked(1) {
        Some((":" | "+", number)) => Ok(Some(number.to_owned())),
        Some(("$", "-1")) | Some(("_", "")) => Ok(None),
        // A value of the commands that are sent here is a number or a word, on one line.
        Some(("$", _)) => line(connection).map(Some),
        _ => Err(unknown()),
    }
}

fn line(connection: &mut Connection) -> io::Result<String> {
    let mut line = String::new();
    connection
        .by_ref()
        .take(LONGEST_LINE)
        .read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(text) => Ok(text.to_owned()),
        None if line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        None => Err(unknown()),
    }
}

fn unknown() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the server's answer is not one of EARRRL",
    )
}
