//! The connection of a client: over TCP, over a Unix socket, or with TLS.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// The address that is used for clients over a Unix socket, since they are on this machine.
pub const OF_UNIX: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

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

    /// Returns true if TLS has negotiated HTTP/2 (ALPN) for this connection.
    pub fn agreed_on_http2(&self) -> bool {
        match self {
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
            Self::Tcp(_) | Self::Unix(_) => false,
        }
    }

    /// Returns true if the socket has unread bytes, even if the connection's task was not woken for
    /// them yet.
    pub fn has_input(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let peeked = match self {
            Self::Tcp(stream) => SockRef::from(stream).peek(&mut byte),
            Self::Unix(stream) => SockRef::from(stream).peek(&mut byte),
            Self::Tls(stream) => SockRef::from(stream.get_ref().0).peek(&mut byte),
        };
        matches!(peeked, Ok(1..))
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
