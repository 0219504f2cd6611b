//! Accepts connections, also those from load balancers, which name their clients by the PROXY protocol. After a
//! failure, whose cause may be temporary, such as a lack of file descriptors, it tries again.
//!
//! The listening sockets, over TCP and Unix sockets, are at the end.

use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Type};
use tokio::net::{TcpListener, UnixListener};

use crate::config::listen::{ListenAddress, Protocol};
use crate::connections::{Connection, Refused};
use crate::log::Seldom;
use crate::proxy_protocol::read_head;
use crate::server::Server;
use crate::stream::{OF_UNIX, Stream};

/// The pause before the next `accept` when the process has no file descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// Limits the log to one line a minute for all listeners, since they lack the same descriptors.
static EXHAUSTION_LOGGED: Seldom = Seldom::new();

/// Returns the next connection of a listener, and the address of its peer.
pub(super) async fn next(listener: &Listener) -> (Socket, IpAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => survive(&error).await,
        }
    }
}

/// Returns the reply that reports to a client why its connection is refused.
pub(super) fn refusal(protocol: Protocol, refused: Refused) -> &'static str {
    match (protocol, refused) {
        (Protocol::Resp, Refused::Full) => "-ERR max number of clients reached\r\n",
        (Protocol::Resp, Refused::AddressFull) => "-ERR too many connections from this address\r\n",
        (Protocol::Resp, Refused::Stopping) => "-ERR the server is stopping\r\n",
        // A client that uses HTTP/2 retries when the connection is closed, so it needs no message.
        (Protocol::Grpc, _) => "",
        (Protocol::Http | Protocol::Admin, _) => {
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        }
    }
}

/// Pauses if an error of `accept` is a lack of descriptors or memory, since `accept` would fail
/// again at once. Connections wait in the backlog until others have closed. Other errors concern
/// only the one connection.
async fn survive(error: &io::Error) {
    if matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    ) {
        if EXHAUSTION_LOGGED.is_due(60) {
            tracing::warn!(%error, "can't accept now; connections wait");
        }
        tokio::time::sleep(EXHAUSTED_PAUSE).await;
    }
}

/// Reads the head that a load balancer sends first, and counts the connection as one of the client
/// that the head names. Returns the client's address, or the load balancer's own if it names no
/// client. Returns `None` if the connection must be closed: the peer is no trusted proxy, its head
/// is invalid or late, or its client has too many connections.
pub(super) async fn receive(
    protocol: Protocol,
    stream: &mut Stream,
    connection: &mut Connection,
    server: &Server,
) -> Option<IpAddr> {
    let metrics = &server.service.metrics;
    let balancer = stream.peer()?;
    if !server
        .service
        .rules()
        .reading
        .client_address
        .trusts(balancer)
    {
        metrics.count_proxy_head("untrusted");
        tracing::debug!(%balancer, "not in trusted_proxies: its connection is closed");
        return None;
    }
    let head = connection.in_time(read_head(stream)).await;
    metrics.count_proxy_head(result(&head));
    let client = match head {
        Ok(client) => client.unwrap_or(balancer),
        Err(error) => {
            tracing::debug!(%balancer, %error, "no PROXY head: its connection is closed");
            return None;
        }
    };
    if let Err(refused) = connection.belongs_to(client) {
        metrics.refused.increment();
        // A client that uses TLS could not read an unencrypted reply.
        if !server.tls.as_ref().is_some_and(|tls| tls.covers(protocol)) {
            // A failure does not matter, since the connection is closed next.
            let _ = stream.try_write(refusal(protocol, refused).as_bytes());
        }
        return None;
    }
    Some(client)
}

/// Returns the name in metrics of a result of reading a head.
fn result(head: &io::Result<Option<IpAddr>>) -> &'static str {
    match head {
        Ok(Some(_)) => "client",
        Ok(None) => "local",
        Err(error) => match error.kind() {
            io::ErrorKind::InvalidData => "invalid",
            io::ErrorKind::TimedOut => "late",
            _ => "closed",
        },
    }
}

/// The longest pause between two retries, in seconds.
const LONGEST: u32 = 8;

/// Schedules retries after a failure, at pauses of 1, 2, 4 and then 8 seconds.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// The length of the current pause in seconds; zero if the last attempt succeeded.
    pause: u32,
    /// The number of seconds that remain of the current pause.
    left: u32,
}

impl Again {
    /// Records the result of an attempt, and starts the pause before the next one.
    pub(super) fn attempted(&mut self, succeeded: bool) {
        self.pause = if succeeded {
            0
        } else {
            (2 * self.pause).clamp(1, LONGEST)
        };
        self.left = self.pause;
    }

    /// Records that a second has passed, and returns true if the pause is over and a retry is due.
    pub(super) fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.pause > 0 && self.left == 0
    }
}

/// The number of connections that the kernel completes and queues until they are accepted.
const BACKLOG: i32 = 4096;

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A socket that listens on an IP address and port.
    Tcp(TcpListener),
    /// A Unix socket. Its file is removed with the listener, unless systemd passed the socket.
    Unix(UnixListener, Option<SocketFile>),
}

/// An accepted connection that is not yet registered with the thread that will serve it.
#[derive(Debug)]
pub struct Socket {
    socket: socket2::Socket,
    /// True for a connection over a Unix socket, and false for one over TCP.
    pub is_unix: bool,
}

impl Listener {
    /// Opens a listener at an address. The file of a Unix socket gets the permissions `mode`.
    ///
    /// # Errors
    /// Returns an error if the address is in use, does not belong to this machine, or needs
    /// privileges.
    pub fn open(address: &ListenAddress, mode: u32) -> io::Result<Self> {
        let new = |domain| socket2::Socket::new(domain, Type::STREAM, None);
        let (socket, file) = match address {
            ListenAddress::Tcp(address) => {
                let socket = new(Domain::for_address(*address))?;
                // SO_REUSEADDR, not SO_REUSEPORT: a restarted server may take over the address, but
                // a second server must not share it.
                socket.set_reuse_address(true)?;
                socket.bind(&(*address).into())?;
                (socket, None)
            }
            ListenAddress::Unix(path) => {
                remove_stale(path)?;
                let socket = new(Domain::UNIX)?;
                // The file is created with these permissions less the umask, so it is never
                // accessible to more users than configured.
                fchmod(&socket, Mode::from_raw_mode(mode))?;
                socket.bind(&SockAddr::unix(path)?)?;
                let file = SocketFile::of(path)?;
                fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
                (socket, Some(file))
            }
        };
        socket.listen(BACKLOG)?;
        Self::new(socket, file)
    }

    /// Creates a listener from a socket that systemd passed, which already listens.
    ///
    /// # Errors
    /// Returns an error if the runtime cannot register the socket.
    pub fn take_over(socket: socket2::Socket) -> io::Result<Self> {
        Self::new(socket, None)
    }

    fn new(socket: socket2::Socket, file: Option<SocketFile>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(match socket.local_addr()?.is_unix() {
            true => Self::Unix(UnixListener::from_std(socket.into())?, file),
            false => Self::Tcp(TcpListener::from_std(socket.into())?),
        })
    }

    /// Returns the address that the listener is bound to.
    ///
    /// # Errors
    /// Returns the system's error if the address is not available.
    pub fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => Ok(ListenAddress::Tcp(listener.local_addr()?)),
            Self::Unix(listener, _) => {
                let address = listener.local_addr()?;
                Ok(ListenAddress::Unix(
                    address.as_pathname().unwrap_or(Path::new("")).to_owned(),
                ))
            }
        }
    }

    /// Returns the next connection and the address of its peer.
    ///
    /// # Errors
    /// Returns the error of `accept`: a failure of the one connection, or a lack of resources.
    pub async fn accept(&self) -> io::Result<(Socket, IpAddr)> {
        let (socket, peer) = match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let socket = socket2::Socket::from(stream.into_std()?);
                // TCP_NODELAY: a response must not wait for the acknowledgement of the previous
                // one. Setting it fails only if the peer has already closed the connection.
                let _ = socket.set_tcp_nodelay(true);
                (socket, peer.ip())
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                (stream.into_std()?.into(), OF_UNIX)
            }
        };
        let is_unix = matches!(self, Self::Unix(..));
        Ok((Socket { socket, is_unix }, peer))
    }
}

/// Removes the socket file that a killed server left behind. A socket on which a process listens
/// stays, and so does a file that is not a socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        let why = "there is a file that is no socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

impl Socket {
    /// Registers the socket with the event queue of the current thread.
    ///
    /// # Errors
    /// Fails if the thread's event queue does not accept the socket.
    pub fn into_stream(self) -> io::Result<Stream> {
        Ok(match self.is_unix {
            true => Stream::Unix(tokio::net::UnixStream::from_std(self.socket.into())?),
            false => Stream::Tcp(tokio::net::TcpStream::from_std(self.socket.into())?),
        })
    }

    /// Sends a few bytes if that is possible without waiting.
    pub fn send(&self, bytes: &[u8]) {
        // A failure does not matter, since the connection is closed next.
        let _ = self.socket.send(bytes);
    }
}

/// The file of a Unix socket. It is removed on drop, unless the socket of another server has
/// replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        // The path is made absolute, since the current folder may be another one when the file is
        // removed.
        let path = std::path::absolute(path)?;
        Ok(Self {
            path,
            identity: (metadata.dev(), metadata.ino()),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let metadata = fs::symlink_metadata(&self.path);
        if metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod again_tests {
    use super::*;

    #[test]
    fn pauses_grow_until_it_succeeds() {
        let mut again = Again::default();
        let due = |again: &mut Again| (1..=20).find(|_| again.is_due());
        assert_eq!(due(&mut again), None);
        for pause in [1, 2, 4, 8, 8] {
            again.attempted(false);
            assert_eq!(due(&mut again), Some(pause));
        }
        again.attempted(true);
        assert_eq!(due(&mut again), None);
    }
}

#[cfg(test)]
mod socket_tests {
    use super::*;

    #[tokio::test]
    async fn a_sockets_file_comes_and_goes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let address = ListenAddress::Unix(path.clone());
        let listener = Listener::open(&address, 0o600).unwrap();
        assert_eq!(listener.address().unwrap(), address);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = Listener::open(&address, 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "somebody listens");
        drop(listener);
        assert!(!path.exists());

        // The socket file of a killed server is removed; a file of another kind is not.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::open(&address, 0o666).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        fs::remove_file(&path).unwrap();
        let _successor = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists(), "a successor's");
        let other = folder.path().join("file");
        fs::write(&other, "precious").unwrap();
        assert!(Listener::open(&ListenAddress::Unix(other.clone()), 0o600).is_err());
        assert_eq!(fs::read_to_string(other).unwrap(), "precious");
    }
}
