//! One HTTP/1.1 connection: hyper under the same limits and deadlines as RESP.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tower::ServiceExt as _;

use super::{authz, host};
use crate::connections::{Connection, Standing};
use crate::server::Server;

/// Most header fields of a request.
const MAX_HEADERS: usize = 64;
/// Most bytes of a request's head.
const MAX_HEAD_LEN: usize = 16 * 1024;

/// What a connection without a place of its own is told, and one that would hold too much.
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
                            content-length: 0\r\nconnection: close\r\n\r\n";
/// Bytes that a request takes before any of it is kept: the reader's buffer.
const READER: usize = 8 * 1024;

/// How long a connection is silent before it counts as idle to a server that is stopping: what has
/// arrived is noticed by then.
const SILENCE: Duration = Duration::from_millis(50);

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The client or the server was done with it.
    Done,
    /// Its deadline has passed.
    Overdue,
    /// All connections together would hold too much.
    Overloaded,
}

/// Serves a connection to its end.
pub async fn serve(stream: TcpStream, connection: Connection, server: Arc<Server>, router: Router) {
    let connection = Arc::new(connection);
    let peer = stream.peer_addr().ok().map(|peer| peer.ip());
    let watched =
        Watched { stream, connection: Arc::clone(&connection), received: 0, overloaded: false };
    let answering = Arc::clone(&server);
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = peer
            && request.uri().path().starts_with(authz::PATH)
        {
            request.extensions_mut().insert(authz::Peer(peer));
        }
        answer(request, Arc::clone(&answering), router.clone())
    });
    let mut served = http1::Builder::new()
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_LEN)
        .serve_connection(TokioIo::new(watched), service);
    let mut silence = None;
    let ended =
        poll_fn(|context| poll_served(&mut served, &connection, &mut silence, context)).await;
    let watched = served.into_parts().io.into_inner();
    let ended = if watched.overloaded { Ended::Overloaded } else { ended };
    if ended != Ended::Done {
        server.service.metrics.shed.increment();
    }
    if ended == Ended::Overloaded {
        // What it held is freed by now.
        connection.hold(0);
        say_overloaded(watched.stream, &connection).await;
    }
}

async fn answer(
    request: Request<Incoming>,
    server: Arc<Server>,
    router: Router,
) -> Result<Response, Infallible> {
    let mut response = match host::check(&server, &request) {
        Ok(()) => router.oneshot(request).await?,
        Err(problem) => problem.into_response(),
    };
    server.service.metrics.count_status(response.status().as_u16());
    if server.connections.are_stopping() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

fn poll_served(
    served: &mut (impl Future + Unpin),
    connection: &Connection,
    silence: &mut Option<Pin<Box<Sleep>>>,
    context: &mut Context<'_>,
) -> Poll<Ended> {
    let ended = Pin::new(served).poll(context);
    match connection.standing(context) {
        _ if ended.is_ready() => Poll::Ready(Ended::Done),
        Standing::Good => Poll::Pending,
        Standing::Overdue => Poll::Ready(Ended::Overdue),
        // A request that is under way is answered, and its answer says that it was the last.
        Standing::Stopping if connection.is_busy() => Poll::Pending,
        Standing::Stopping => {
            let silence = silence.get_or_insert_with(|| Box::pin(sleep(SILENCE)));
            silence.as_mut().poll(context).map(|()| Ended::Done)
        }
    }
}

/// Closes so that the answer arrives: bytes left unread would make the kernel reset the connection.
async fn say_overloaded(mut stream: TcpStream, connection: &Connection) {
    let _ = stream.try_write(OVERLOADED);
    connection.leave();
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut unread = [0; 512];
    poll_fn(|context| {
        loop {
            if connection.standing(context) == Standing::Overdue {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut unread);
            match ready!(Pin::new(&mut stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    })
    .await;
}

/// The socket, which sets the connection's deadline in passing: from the first byte of a request
/// until its answer is written the client is busy, and trickling bytes does not prolong that.
struct Watched {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// Bytes of the present request that have come.
    received: usize,
    overloaded: bool,
}

impl Watched {
    fn set_busy(&mut self) {
        if !self.connection.is_busy() {
            self.connection.busy();
        }
    }

    /// Accounts for what has come: it is kept until the request is answered, and a body's buffer
    /// grows by doubling.
    fn keep(&mut self, bytes: usize) -> io::Result<()> {
        self.received += bytes;
        if self.connection.hold(READER + 2 * self.received) {
            return Ok(());
        }
        self.overloaded = true;
        Err(io::ErrorKind::OutOfMemory.into())
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let came = buffer.filled().len() - before;
        if came == 0 {
            return Poll::Ready(Ok(()));
        }
        self.set_busy();
        Poll::Ready(self.keep(came))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.overloaded {
            // Something else is said instead.
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, bytes)? else {
            self.set_busy();
            return Poll::Pending;
        };
        if written == bytes.len() {
            self.received = 0;
            self.connection.hold(0);
            self.connection.idle();
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
