//! The connection of a client: over TCP, over a Unix socket, or with TLS.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// The address that is used for clients over a Unix socket, since they are on this machine.
pub const OF_UNIX: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The first bytes that a client sends if it uses HTTP/2 without negotiating it (RFC 9113 section
/// 3.4).
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The connection of a client.
#[derive(Debug)]
pub enum Stream {
    /// An unencrypted TCP connection.
    Tcp(TcpStream),
    /// A connection over a Unix socket.
    Unix(UnixStream),
    /// A TCP connection with TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Returns the address of the peer.
    pub fn peer(&self) -> Option<IpAddr> {
        let tcp = match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
            Self::Unix(_) => return Some(OF_UNIX),
        };
        tcp.peer_addr().ok().map(|address| address.ip())
    }

    /// Returns true if TLS has negotiated HTTP/2 (ALPN) for this connection or, without TLS, if the
    /// first bytes that the client sends are HTTP/2's. These bytes stay unread. Calls `begun` if
    /// only some of them have arrived.
    pub async fn speaks_http2(&self, begun: impl Fn()) -> bool {
        loop {
            let readable = match self {
                Self::Tcp(stream) => stream.ready(Interest::READABLE).await,
                Self::Unix(stream) => stream.ready(Interest::READABLE).await,
                Self::Tls(stream) => return stream.get_ref().1.alpn_protocol() == Some(b"h2"),
            };
            let Ok(readable) = readable else {
                return false;
            };
            let is_whole = readable.is_read_closed();
            let begins = || {
                let mut first = [0; HTTP2_PREFACE.len()];
                let (_, count) = recv(self.socket(), &mut first, RecvFlags::PEEK)?;
                let begins = HTTP2_PREFACE.starts_with(&first[..count]) && count > 0;
                if begins && count < first.len() && !is_whole {
                    begun();
                    // The runtime then waits for more bytes.
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(begins)
            };
            let begins = match self {
                Self::Unix(stream) => stream.try_io(Interest::READABLE, begins),
                Self::Tcp(stream) => stream.try_io(Interest::READABLE, begins),
                Self::Tls(_) => Ok(false),
            };
            match begins {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The next read returns another error again.
                begins => return begins.unwrap_or(false),
            }
        }
    }

    /// Returns true if the socket has unread bytes, even if the connection's task was not woken for
    /// them yet.
    pub fn has_input(&self) -> bool {
        matches!(
            recv(self.socket(), &mut [0; 1], RecvFlags::PEEK),
            Ok((_, 1..))
        )
    }

    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.get_ref().0.as_fd(),
        }
    }

    /// Writes as many bytes as possible without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no byte can be written without waiting, or the error of the socket.
    #[inline]
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Tls(stream) => {
                let mut nobody = Context::from_waker(Waker::noop());
                match Pin::new(stream).poll_write(&mut nobody, bytes) {
                    Poll::Ready(result) => result,
                    Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
                }
            }
        }
    }

    /// Returns true if encrypted bytes have not been written to the socket yet.
    #[inline]
    pub fn is_unflushed(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.get_ref().1.wants_write(),
        }
    }
}

/// Calls a method of whichever socket the stream is.
macro_rules! of_socket {
    ($stream:expr, $method:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).$method($($argument),*),
            Stream::Unix(stream) => Pin::new(stream).$method($($argument),*),
            Stream::Tls(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        of_socket!(self, poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        of_socket!(self, poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_socket!(self, poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_socket!(self, poll_shutdown(context))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        of_socket!(self, poll_write_vectored(context, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
