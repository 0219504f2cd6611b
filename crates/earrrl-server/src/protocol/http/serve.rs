//! One HTTP connection: hyper under the same limits and deadlines as RESP.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use axum::response::{IntoResponse as _, Response};
use axum::{BoxError, Router};
use h2::RecvStream;
use hyper::body::{Body, Bytes};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep, timeout};
use tower::Service as _;

use super::lines::{BadHead, HeadLines, MAX_FIELDS, MAX_HEAD_LEN};
use super::{authz, host};
use crate::connections::{Connection, ConnectionState};
use crate::protocol::authz::{NO_MEMORY, refuse};
use crate::protocol::first::Rewound;
use crate::protocol::http2::held::{self, HeldBytes, HeldShare};
use crate::protocol::http2::{self, exchange};
use crate::protocol::linger::linger;
use crate::protocol::response::problem::{GONE, Problem};
use crate::server::Server;
use crate::stream::Stream;

/// The size of hyper's buffer: it holds the largest head that [`HeadLines`] let pass.
const BUFFER: usize = MAX_HEAD_LEN + 8 * 1024;

/// The answer to a connection beyond the limits, in number or in memory.
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
                            content-length: 0\r\nconnection: close\r\n\r\n";
/// The answer to a head beyond the bounds.
const TOO_LARGE: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n\
                           connection: close\r\n\r\n";
/// The reason why a proxied request with such a head is denied.
const TOO_LARGE_QUESTION: &str = "the head has too many or too long header fields";
/// The answer to a line that ends in LF alone.
const BARE_LF: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n\
                         content-length: 101\r\nconnection: close\r\n\r\n\
                         {\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
                         \"detail\":\"a line ends in LF, expected CRLF\"}";
/// Bytes that a request takes before any of it is kept: the reader's buffer.
const READER: usize = 8 * 1024;

/// Bytes of a request beside that, and of its answer, for which there is always room.
const SMALL: usize = 2 * 1024;

/// The delay of the answer to a wrong token, once a client has sent several.
const GUESSING: Duration = Duration::from_secs(1);

/// The silence after which a stopping server counts a connection as idle. Bytes that have arrived
/// are noticed within this time.
const SILENCE: Duration = Duration::from_millis(50);

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpEnded {
    /// The client or the server was done with it.
    Done,
    /// Its deadline has passed.
    Overdue,
    /// The next request of the connection was refused.
    Refused(HttpRefusal),
}

/// The reason why the server stopped reading from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpRefusal {
    /// All connections together would hold too much.
    Overloaded,
    /// The same for a proxy's question: an error would let its client pass.
    OverloadedQuestion,
    /// The same in the middle of an answer, where no error can be sent.
    Cut,
    /// The head of a request was refused.
    Head(BadHead),
}

impl HttpRefusal {
    /// Returns the status and the bytes of the answer.
    fn answer(self, server: &Server) -> (Option<u16>, Cow<'static, [u8]>) {
        match self {
            Self::Overloaded => (Some(503), OVERLOADED.into()),
            Self::Cut => (None, Cow::default()),
            Self::Head(BadHead::BareLf) => (Some(400), BARE_LF.into()),
            Self::Head(BadHead::TooLarge { asks: false }) => (Some(431), TOO_LARGE.into()),
            Self::Head(BadHead::TooLarge { asks: true }) => denied(server, TOO_LARGE_QUESTION),
            Self::OverloadedQuestion => denied(server, NO_MEMORY),
        }
    }
}

/// Returns the denial of a proxied request that is not judged: an error would let it pass.
fn denied(server: &Server, why: &str) -> (Option<u16>, Cow<'static, [u8]>) {
    let status = server.service.rules().deny_status;
    let verdict = refuse(status, why);
    let body = String::from_utf8_lossy(verdict.body());
    let reason = verdict.status().canonical_reason().unwrap_or_default();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/problem+json\r\n\
         x-ratelimit-action: deny\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    (Some(status), (head + &body).into_bytes().into())
}

/// Serves a connection to its end; where a proxy `asks`, `/v1/authz` too.
pub async fn serve(
    stream: Stream,
    connection: Connection,
    server: Arc<Server>,
    router: Router,
    asks: bool,
) {
    let peer = stream.peer();
    let mut stream = Rewound::new(stream);
    let mut silence = None;
    let http2 = {
        let mut asked = pin!(stream.speaks_http2(&connection));
        poll_fn(|context| poll_served(&mut asked, &connection, &mut silence, context)).await
    };
    let routes = Routes { server: Arc::clone(&server), router, peer, asks };
    match http2 {
        Ok(Ok(true)) => serve_http2(stream, connection, routes).await,
        Ok(Ok(false)) => serve_http1(stream, connection, routes, silence).await,
        Ok(Err(_)) | Err(HttpEnded::Done) => {}
        Err(HttpEnded::Overdue | HttpEnded::Refused(_)) => server.service.metrics.shed.increment(),
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
    let watched = TimedSocket {
        stream,
        connection: Arc::clone(&connection),
        received: 0,
        answer: 0,
        flushing: false,
        lines: HeadLines::default(),
        refused: None,
    };
    let asking = Arc::clone(&connection);
    let mut served = http1::Builder::new()
        .half_close(true)
        .max_headers(MAX_FIELDS)
        .max_buf_size(BUFFER)
        .serve_connection(
            TokioIo::new(watched),
            service_fn(|request| routes.answer(request, &asking)),
        );
    let ended =
        poll_fn(|context| poll_served(&mut served, &connection, &mut silence, context)).await;
    let TimedSocket { stream, refused, .. } = served.into_parts().io.into_inner();
    let metrics = &server.service.metrics;
    let ended = match (refused, ended) {
        (Some(refusal), _) => HttpEnded::Refused(refusal),
        (None, Ok(served)) => {
            let status = served.err().as_ref().and_then(status_of);
            status.inspect(|status| metrics.count_status(*status));
            HttpEnded::Done
        }
        (None, Err(ended)) => ended,
    };
    close(ended, stream.stream, &connection, &server).await;
}

/// Counts a connection that was shed, and answers a request that was refused.
async fn close(ended: HttpEnded, mut stream: Stream, connection: &Connection, server: &Server) {
    let metrics = &server.service.metrics;
    if matches!(
        ended,
        HttpEnded::Overdue
            | HttpEnded::Refused(
                HttpRefusal::Overloaded | HttpRefusal::OverloadedQuestion | HttpRefusal::Cut
            )
    ) {
        metrics.shed.increment();
    }
    if let HttpEnded::Refused(refusal) = ended {
        let (status, answer) = refusal.answer(server);
        status.into_iter().for_each(|status| metrics.count_status(status));
        let _ = stream.try_write(&answer);
        linger(&mut stream, connection).await;
    }
}

/// Returns the status of hyper's own answer to a request that it could not parse.
fn status_of(error: &hyper::Error) -> Option<u16> {
    error.is_parse().then_some(if error.is_parse_too_large() { 431 } else { 400 })
}

async fn serve_http2(stream: Rewound, connection: Connection, routes: Routes) {
    let server = Arc::clone(&routes.server);
    http2::serve(stream, Arc::new(connection), &server, |arrived, held, context| {
        answer_http2(arrived, held, &routes, context);
    })
    .await;
}

/// Answers a request of HTTP/2, at once where nothing has to be waited for.
fn answer_http2(
    (request, mut respond): http2::Arrived,
    held: &Arc<HeldBytes>,
    routes: &Routes,
    context: &mut Context<'_>,
) {
    let server = Arc::clone(&routes.server);
    let mut share = HeldShare::new(held);
    if !share.set(held_by(&request, &server)) {
        let asks = routes.asks && authz::is_asked(request.uri().path());
        let response = if asks { authz::without_memory(&server) } else { overloaded() };
        server.service.metrics.shed.increment();
        server.service.metrics.count_status(response.status().as_u16());
        // A client that has gone gets no answer.
        let _ = respond.send_response(response, true);
        return;
    }
    // Its body is counted already, and `in_time` answers a late one with a status before it is broken off.
    let request = exchange::receive(request, None, 2 * exchange::patience(&server));
    let answered = routes.answer(request, held.connection());
    let mut answering = Box::pin(async move {
        let answered = async { Ok(in_time(&server, answered).await) };
        exchange::send_answer(&server, answered, respond, share).await;
    });
    if answering.as_mut().poll(context).is_pending() {
        tokio::spawn(answering);
    }
}

/// Returns the bytes that a request may take: its head, and a body as long as that may get.
fn held_by(request: &Request<RecvStream>, server: &Server) -> usize {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let announced = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let longest = if request.body().is_end_stream() { 0 } else { server.config.max_body };
    held::head(request.headers()) + announced.unwrap_or(longest).min(longest)
}

/// Returns the answer, or an error if the request did not arrive in time.
async fn in_time(
    server: &Server,
    answered: impl Future<Output = Result<Response, Infallible>>,
) -> Response {
    match timeout(exchange::patience(server), answered).await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => {
            let why = "the request did not arrive in time";
            Problem::new(StatusCode::REQUEST_TIMEOUT, why).into_response()
        }
    }
}

/// Returns the answer to a request for which there is no memory. It has no body, which would have to be
/// kept until the client fetches it.
fn overloaded() -> axum::http::Response<()> {
    let mut response = axum::http::Response::new(());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    response
}

/// The body of a request, of HTTP/1.1 or HTTP/2.
trait RequestBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> RequestBody for B {}

/// The router for the requests of a connection, with the data that it needs.
#[derive(Clone)]
struct Routes {
    server: Arc<Server>,
    router: Router,
    peer: Option<IpAddr>,
    /// True if proxies may send their questions (`/v1/authz`) over this connection.
    asks: bool,
}

impl Routes {
    fn answer<B: RequestBody>(
        &self,
        request: Request<B>,
        connection: &Arc<Connection>,
    ) -> impl Future<Output = Result<Response, Infallible>> + Send + use<B> {
        answer(request, self.clone(), Arc::clone(connection))
    }
}

async fn answer<B: RequestBody>(
    request: Request<B>,
    routes: Routes,
    connection: Arc<Connection>,
) -> Result<Response, Infallible> {
    let Routes { server, mut router, peer, asks } = routes;
    let http2 = request.version() == Version::HTTP_2;
    let mut response = if asks && authz::is_asked(request.uri().path()) {
        // Its `Host` may be the client's own, and is no reason to refuse.
        let (head, _body) = request.into_parts();
        authz::answer(&server, &head, peer).await
    } else {
        match host::check(&server, &request) {
            Ok(()) => router.call(request).await?,
            Err(problem) => problem.into_response(),
        }
    };
    // A client that has gone gets no answer.
    if response.status().as_u16() != GONE {
        server.service.metrics.count_status(response.status().as_u16());
    }
    let guesses = response.status() == StatusCode::UNAUTHORIZED && connection.refuses_a_token();
    if guesses {
        sleep(GUESSING).await;
    }
    if (guesses || server.connections.are_stopping()) && !http2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Returns the result of `served`, or the reason to stop waiting for it.
fn poll_served<F: Future + Unpin>(
    served: &mut F,
    connection: &Connection,
    silence: &mut Option<Pin<Box<Sleep>>>,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output, HttpEnded>> {
    let served = Pin::new(served).poll(context);
    match connection.standing(context) {
        _ if served.is_ready() => served.map(Ok),
        ConnectionState::Good => Poll::Pending,
        ConnectionState::Overdue => Poll::Ready(Err(HttpEnded::Overdue)),
        // A request that is under way is answered, and its answer says that it was the last.
        ConnectionState::Stopping if connection.is_busy() => Poll::Pending,
        ConnectionState::Stopping => {
            let silence = silence.get_or_insert_with(|| Box::pin(sleep(SILENCE)));
            silence.as_mut().poll(context).map(|()| Err(HttpEnded::Done))
        }
    }
}

/// The socket, which sets the connection's deadline in passing: from the first byte of a request
/// until its answer is written the client is busy, and trickling bytes does not prolong that.
struct TimedSocket {
    stream: Rewound,
    connection: Arc<Connection>,
    /// Bytes of the present request that have come.
    received: usize,
    /// Bytes of answers that the client is slow to fetch.
    answer: usize,
    /// True while there is an encrypted answer that the client has not fetched.
    flushing: bool,
    lines: HeadLines,
    /// The reason why reading stopped, which replaces hyper's own error.
    refused: Option<HttpRefusal>,
}

impl TimedSocket {
    fn set_busy(&mut self) {
        if !self.connection.is_busy() {
            self.connection.busy();
        }
    }

    /// Accounts for what has come: it is kept until the request is answered, and a body's buffer
    /// grows by doubling.
    fn keep(&mut self, bytes: usize) -> io::Result<()> {
        self.received += bytes;
        let overloaded = match self.lines.is_question() {
            true => HttpRefusal::OverloadedQuestion,
            false => HttpRefusal::Overloaded,
        };
        if self.holds() { Ok(()) } else { Err(self.refuse(overloaded)) }
    }

    /// Accounts for an answer that the client has not fetched.
    fn keep_answer(&mut self, bytes: usize) -> io::Result<()> {
        self.answer = self.answer.max(bytes);
        if self.holds() { Ok(()) } else { Err(self.refuse(HttpRefusal::Cut)) }
    }

    /// Returns true if the connection may hold its bytes. Requests as small as a health check are
    /// always admitted.
    fn holds(&self) -> bool {
        let bytes = READER + 2 * self.received + self.answer;
        self.connection.hold(bytes) || bytes <= READER + SMALL
    }

    fn refuse(&mut self, refusal: HttpRefusal) -> io::Error {
        self.refused = Some(refusal);
        io::ErrorKind::ConnectionAborted.into()
    }
}

impl AsyncRead for TimedSocket {
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
        if let Err(refusal) = self.lines.follow(&mut buffer.filled_mut()[before..]) {
            return Poll::Ready(Err(self.refuse(HttpRefusal::Head(refusal))));
        }
        Poll::Ready(self.keep(came))
    }
}

impl AsyncWrite for TimedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.refused.is_some() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, bytes)? else {
            self.set_busy();
            return match self.keep_answer(bytes.len()) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            };
        };
        if written == bytes.len() {
            (self.received, self.answer) = (0, 0);
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
        // The reason for the refusal is still sent.
        if self.refused.is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
