//! Listening sockets and the connections that they accept, over TCP and Unix sockets.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use socket2::{Domain, SockAddr, Type};
use tokio::net::{TcpListener, UnixListener};

use crate::config::listen::ListenAddress;
use crate::stream::{OF_UNIX, Stream};

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
mod tests {
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
