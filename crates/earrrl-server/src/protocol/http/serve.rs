//! Serves one HTTP connection with hyper, under the same limits and deadlines as RESP connections.

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

/// The size of hyper's buffer in bytes. It holds the largest head that [`HeadLines`] accepts.
const BUFFER: usize = MAX_HEAD_LEN + 8 * 1024;

/// The response when the limit on connections, or on the memory of all connections, is reached.
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
                            content-length: 0\r\nconnection: close\r\n\r\n";
/// The response to a request whose head is too large.
const TOO_LARGE: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n\
                           connection: close\r\n\r\n";
/// The reason that is reported when a proxied request is denied because its head is too large.
const TOO_LARGE_QUESTION: &str = "the head has too many or too long header fields";
/// The response to a request in which a line ends in LF alone.
const BARE_LF: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n\
                         content-length: 101\r\nconnection: close\r\n\r\n\
                         {\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
                         \"detail\":\"a line ends in LF, expected CRLF\"}";
/// The size of the buffer, in bytes, that a connection reads requests into.
const READER: usize = 8 * 1024;

/// The number of bytes that a request and its response may always take besides `READER`, even if
/// memory is short.
const SMALL: usize = 2 * 1024;

/// The delay of the response to a wrong token, after a client has sent several wrong tokens.
const GUESSING: Duration = Duration::from_secs(1);

/// The time without a request after which a stopping server closes a connection. It is long enough
/// for the server to notice bytes that have already arrived.
const SILENCE: Duration = Duration::from_millis(50);

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpEnded {
    /// The connection was closed by the client, or by the server without an error.
    Done,
    /// The connection's deadline has passed.
    Overdue,
    /// The next request of the connection was refused.
    Refused(HttpRefusal),
}

/// The reason why the server stopped reading from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpRefusal {
    /// The memory limit of all connections together was reached.
    Overloaded,
    /// The memory limit was reached by an authorization request. It gets a denial, since a proxy
    /// would pass its client's request on after an error.
    OverloadedQuestion,
    /// The memory limit was reached while a response was being sent, so no error can be sent.
    Cut,
    /// The head of a request was refused.
    Head(BadHead),
}

impl HttpRefusal {
    /// Returns the status and the bytes of the response to the refused request.
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

/// Returns the status and the bytes of a denial of a proxied request that cannot be decided. A
/// proxy would pass the request on after an error.
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

/// Serves a connection of the client at `peer` until it ends. Also serves `/v1/authz` if `asks` is true.
pub async fn serve(
    stream: Stream,
    peer: Option<IpAddr>,
    connection: Connection,
    server: Arc<Server>,
    router: Router,
    asks: bool,
) {
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

/// Counts the connection if it was closed to save resources, and answers the request if one was
/// refused.
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

/// Answers an HTTP/2 request immediately if possible, or else in a task.
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
        // The sending fails only if the client has disconnected or cancelled the request.
        let _ = respond.send_response(response, true);
        return;
    }
    // The body's memory is already counted, by `held_by`. Its deadline is twice that of `in_time`,
    // so that a client that is late gets a 408 response before its stream is reset.
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

/// Returns the most bytes that a request can hold: its head, and its body's announced or largest
/// permitted length.
fn held_by(request: &Request<RecvStream>, server: &Server) -> usize {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let announced = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let longest = if request.body().is_end_stream() { 0 } else { server.config.max_body };
    held::head(request.headers()) + announced.unwrap_or(longest).min(longest)
}

/// Returns the response, or status 408 if the request does not arrive in time.
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

/// Returns the response to a request when memory is short. It has no body, since a body would
/// occupy memory until the client has read it.
fn overloaded() -> axum::http::Response<()> {
    let mut response = axum::http::Response::new(());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    response
}

/// The body of an HTTP/1.1 or HTTP/2 request.
trait RequestBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> RequestBody for B {}

/// The router for the requests of one connection, and the data about this connection that handlers
/// need.
#[derive(Clone)]
struct Routes {
    server: Arc<Server>,
    router: Router,
    peer: Option<IpAddr>,
    /// True if proxies may send authorization requests (`/v1/authz`) over this connection.
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
        // The `Host` of an authorization request may be that of the proxy's client, so it is not
        // checked.
        let (head, _body) = request.into_parts();
        authz::answer(&server, &head, peer).await
    } else {
        match host::check(&server, &request) {
            Ok(()) => router.call(request).await?,
            Err(problem) => problem.into_response(),
        }
    };
    // The sending fails only if the client has disconnected or cancelled the request.
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

/// Returns the result of `served`, or the reason why the connection must end before `served` does.
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
        // A request in flight is still answered, and its response has `Connection: close`.
        ConnectionState::Stopping if connection.is_busy() => Poll::Pending,
        ConnectionState::Stopping => {
            let silence = silence.get_or_insert_with(|| Box::pin(sleep(SILENCE)));
            silence.as_mut().poll(context).map(|()| Err(HttpEnded::Done))
        }
    }
}

/// The socket of an HTTP/1.1 connection, which sets the connection's deadline on reads and writes.
/// The connection is busy from the first byte of a request until its response is written. The
/// deadline is set once for that time, so a client cannot extend it by sending slowly.
struct TimedSocket {
    stream: Rewound,
    connection: Arc<Connection>,
    /// The number of bytes of the present request that have arrived.
    received: usize,
    /// The number of bytes of the response that the socket has not accepted yet.
    answer: usize,
    /// True while TLS still holds a part of a response that the socket has not accepted.
    flushing: bool,
    lines: HeadLines,
    /// The reason why the socket refused to read on. It is reported instead of the error that hyper
    /// then returns.
    refused: Option<HttpRefusal>,
}

impl TimedSocket {
    fn set_busy(&mut self) {
        if !self.connection.is_busy() {
            self.connection.busy();
        }
    }

    /// Counts bytes that have arrived as held until the request is answered. Each byte counts
    /// twice, since a body's buffer grows by doubling.
    fn keep(&mut self, bytes: usize) -> io::Result<()> {
        self.received += bytes;
        let overloaded = match self.lines.is_question() {
            true => HttpRefusal::OverloadedQuestion,
            false => HttpRefusal::Overloaded,
        };
        if self.holds() { Ok(()) } else { Err(self.refuse(overloaded)) }
    }

    /// Counts the bytes of a response as held while the client does not read it.
    fn keep_answer(&mut self, bytes: usize) -> io::Result<()> {
        self.answer = self.answer.max(bytes);
        if self.holds() { Ok(()) } else { Err(self.refuse(HttpRefusal::Cut)) }
    }

    /// Returns true if the memory limit admits the bytes of this connection. Requests as small as a
    /// health check are always admitted.
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
        // The socket is left open, since `close` still sends the response to the refused request.
        if self.refused.is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
