//! One HTTP connection: hyper under the same limits and deadlines as RESP.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Sleep, sleep, timeout};
use tower::ServiceExt as _;

use super::problem::Problem;
use super::{authz, host};
use crate::connections::{Connection, Standing};
use crate::protocol::first::Rewound;
use crate::protocol::http2;
use crate::server::Server;
use crate::stream::Stream;

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
pub async fn serve(stream: Stream, connection: Connection, server: Arc<Server>, router: Router) {
    let peer = stream.peer();
    let mut stream = Rewound::new(stream);
    let mut silence = None;
    let http2 = {
        let mut asked = pin!(stream.speaks_http2(&connection));
        poll_fn(|context| poll_served(&mut asked, &connection, &mut silence, context)).await
    };
    let routes = Routes { server: Arc::clone(&server), router, peer };
    match http2 {
        Ok(Ok(true)) => serve_http2(stream, connection, routes).await,
        Ok(Ok(false)) => serve_http1(stream, connection, routes, silence).await,
        Ok(Err(_)) | Err(Ended::Done) => {}
        Err(Ended::Overdue | Ended::Overloaded) => server.service.metrics.shed.increment(),
    }
}

async fn serve_http1(
    stream: Rewound,
    connection: Connection,
    routes: Routes,
    mut silence: Option<Pin<Box<Sleep>>>,
) {
    let server = Arc::clone(&routes.server);
    let connection = Arc::new(connection);
    let watched = Watched {
        stream,
        connection: Arc::clone(&connection),
        received: 0,
        flushing: false,
        overloaded: false,
    };
    let mut served = http1::Builder::new()
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_LEN)
        .serve_connection(TokioIo::new(watched), service_fn(|request| routes.answer(request)));
    let ended =
        poll_fn(|context| poll_served(&mut served, &connection, &mut silence, context)).await;
    let watched = served.into_parts().io.into_inner();
    let ended = match ended {
        _ if watched.overloaded => Ended::Overloaded,
        Ok(_) => Ended::Done,
        Err(ended) => ended,
    };
    if ended != Ended::Done {
        server.service.metrics.shed.increment();
    }
    if ended == Ended::Overloaded {
        // What it held is freed by now.
        connection.hold(0);
        say_overloaded(watched.stream.stream, &connection).await;
    }
}

async fn serve_http2(stream: Rewound, connection: Connection, routes: Routes) {
    let server = Arc::clone(&routes.server);
    let connection = Arc::new(connection);
    let patience = Duration::from_secs(server.config.limits.request.into());
    let bodies = Arc::new(Bodies { connection: Arc::clone(&connection), held: 0.into() });
    let max_body = server.config.max_body;
    let answer = move |request: Request<Incoming>| {
        let kept = Kept::new(&bodies, &request, max_body);
        let routes = routes.clone();
        async move {
            let Some(_kept) = kept else { return Ok(overloaded()) };
            match timeout(patience, routes.answer(request)).await {
                Ok(answered) => answered,
                Err(_) => {
                    let why = "the request did not arrive in time";
                    Ok(Problem::new(StatusCode::REQUEST_TIMEOUT, why).into_response())
                }
            }
        }
    };
    http2::serve(stream, connection, &server, answer).await;
}

fn overloaded() -> Response {
    let why = "all connections together hold too much; come back in a second";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, why);
    ([(header::RETRY_AFTER, "1")], problem).into_response()
}

/// What answers the requests of a connection.
#[derive(Clone)]
struct Routes {
    server: Arc<Server>,
    router: Router,
    peer: Option<IpAddr>,
}

impl Routes {
    fn answer(
        &self,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response, Infallible>> + Send + use<> {
        if let Some(peer) = self.peer
            && request.uri().path().starts_with(authz::PATH)
        {
            request.extensions_mut().insert(authz::Peer(peer));
        }
        answer(request, Arc::clone(&self.server), self.router.clone())
    }
}

/// Bytes that are set aside for the bodies of a connection's requests.
struct Bodies {
    connection: Arc<Connection>,
    held: AtomicUsize,
}

/// One request's part of them.
struct Kept {
    bodies: Arc<Bodies>,
    bytes: usize,
}

impl Kept {
    /// Room for a request's body, as long as that may get. `None` when there is none.
    fn new(bodies: &Arc<Bodies>, request: &Request<Incoming>, max_body: usize) -> Option<Self> {
        let longest = request.body().size_hint().upper().unwrap_or(u64::MAX);
        let bytes = usize::try_from(longest).map_or(max_body, |longest| longest.min(max_body));
        let kept = Self { bodies: Arc::clone(bodies), bytes };
        let held = bodies.held.fetch_add(bytes, Relaxed) + bytes;
        bodies.connection.hold(held).then_some(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let before = self.bodies.held.fetch_sub(self.bytes, Relaxed);
        self.bodies.connection.hold(before - self.bytes);
    }
}

async fn answer(
    request: Request<Incoming>,
    server: Arc<Server>,
    router: Router,
) -> Result<Response, Infallible> {
    let http2 = request.version() == Version::HTTP_2;
    let mut response = match host::check(&server, &request) {
        Ok(()) => router.oneshot(request).await?,
        Err(problem) => problem.into_response(),
    };
    server.service.metrics.count_status(response.status().as_u16());
    if server.connections.are_stopping() && !http2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// What was waited for, or why it is no longer.
fn poll_served<F: Future + Unpin>(
    served: &mut F,
    connection: &Connection,
    silence: &mut Option<Pin<Box<Sleep>>>,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output, Ended>> {
    let served = Pin::new(served).poll(context);
    match connection.standing(context) {
        _ if served.is_ready() => served.map(Ok),
        Standing::Good => Poll::Pending,
        Standing::Overdue => Poll::Ready(Err(Ended::Overdue)),
        // A request that is under way is answered, and its answer says that it was the last.
        Standing::Stopping if connection.is_busy() => Poll::Pending,
        Standing::Stopping => {
            let silence = silence.get_or_insert_with(|| Box::pin(sleep(SILENCE)));
            silence.as_mut().poll(context).map(|()| Err(Ended::Done))
        }
    }
}

/// Closes so that the answer arrives: bytes left unread would make the kernel reset the connection.
async fn say_overloaded(mut stream: Stream, connection: &Connection) {
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
    stream: Rewound,
    connection: Arc<Connection>,
    /// Bytes of the present request that have come.
    received: usize,
    /// Whether an answer is encrypted that the client has not fetched.
    flushing: bool,
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
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_pending() {
            self.flushing = true;
            self.set_busy();
        } else if std::mem::take(&mut self.flushing) && self.received == 0 {
            self.connection.idle();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
