//! One HTTP/1.1 connection: hyper under the same limits and deadlines as RESP.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::http::{HeaderValue, Request, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::connections::{Connection, Standing};
use crate::server::Server;

/// Most header fields of a request.
const MAX_HEADERS: usize = 64;
/// Most bytes of a request's head.
const MAX_HEAD_LEN: usize = 16 * 1024;

/// Serves a connection to its end.
pub async fn serve(stream: TcpStream, connection: Connection, server: Arc<Server>, router: Router) {
    let connection = Arc::new(connection);
    let watched = Watched { stream, connection: Arc::clone(&connection), busy: false };
    let stopping = Arc::clone(&server);
    let service =
        ServiceExt::<Request<Incoming>>::map_response(router, move |mut response: Response| {
            if stopping.connections.are_stopping() {
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        });
    let served = http1::Builder::new()
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_LEN)
        .serve_connection(TokioIo::new(watched), TowerToHyperService::new(service));
    let mut served = pin!(served);
    let mut leaving = false;
    let ended = poll_fn(|context| {
        let ended = served.as_mut().poll(context);
        match connection.standing(context) {
            _ if ended.is_ready() => ended.map(|_| false),
            Standing::Good => Poll::Pending,
            Standing::Overdue => Poll::Ready(true),
            Standing::Stopping => {
                // An idle client has a last moment to ask; its answer says that it was the last.
                if !leaving {
                    leaving = true;
                    connection.leave();
                }
                Poll::Pending
            }
        }
    });
    if ended.await && !leaving {
        server.service.metrics.shed.increment();
    }
}

/// The socket, which sets the connection's deadline in passing: from the first byte of a request
/// until its answer is written the client is busy, and trickling bytes does not prolong that.
struct Watched {
    stream: TcpStream,
    connection: Arc<Connection>,
    busy: bool,
}

impl Watched {
    fn set_busy(&mut self) {
        if !self.busy {
            self.busy = true;
            self.connection.busy();
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.set_busy();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, bytes)? else {
            self.set_busy();
            return Poll::Pending;
        };
        if written == bytes.len() {
            self.busy = false;
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
