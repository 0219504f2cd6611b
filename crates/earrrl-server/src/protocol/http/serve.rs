//! Serves one HTTP connection with hyper, under the same limits and deadlines as RESP connections.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use axum::response::{IntoResponse as _, Response};
use h2::RecvStream;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::{sleep, timeout};
use tower::Service as _;

use super::lines::MAX_HEAD_LEN;
use super::socket::TimedSocket;
use super::{authz, host};
use crate::connections::{Connection, StopGrace, WaitEnd};
use crate::protocol::http2::held::{self, HeldBytes, HeldShare};
use crate::protocol::http2::{self, exchange};
use crate::protocol::linger::linger;
use crate::protocol::response::{GONE, Problem};
use crate::server::Server;
use crate::stream::Stream;

/// The size of hyper's buffer in bytes. It holds the largest head that the socket accepts.
const BUFFER: usize = MAX_HEAD_LEN + 8 * 1024;

/// The delay of the response to a wrong token, after a client has sent several wrong tokens.
const GUESSING: Duration = Duration::from_secs(1);

/// The time without a request after which a stopping server closes a connection. It is long enough
/// for the server to notice bytes that have already arrived.
const SILENCE: Duration = Duration::from_millis(50);

/// Serves a connection of the client at `peer` until it ends. Also serves `/v1/authz` if `asks` is true.
pub async fn serve(
    stream: Stream,
    peer: Option<IpAddr>,
    connection: Connection,
    server: Arc<Server>,
    router: Router,
    asks: bool,
) {
    let mut silence = StopGrace::new(SILENCE);
    let http2 = {
        let begun = || {
            if !connection.is_busy() {
                connection.busy();
            }
        };
        let mut asked = pin!(stream.speaks_http2(begun));
        poll_fn(|context| poll_served(&mut asked, &connection, &mut silence, context)).await
    };
    let routes = Routes {
        server: Arc::clone(&server),
        router,
        peer,
        asks,
    };
    match http2 {
        Ok(true) => serve_http2(stream, connection, routes).await,
        Ok(false) => serve_http1(stream, connection, routes, silence).await,
        Err(WaitEnd::Stopping) => {}
        Err(WaitEnd::Overdue) => server.service.metrics.shed.increment(),
    }
}

async fn serve_http1(
    stream: Stream,
    connection: Connection,
    routes: Routes,
    mut silence: StopGrace,
) {
    let server = Arc::clone(&routes.server);
    let connection = Arc::new(connection);
    let asking = Arc::clone(&connection);
    let mut hyper = http1::Builder::new();
    hyper.half_close(true).max_buf_size(BUFFER);
    let socket = TimedSocket::new(stream, Arc::clone(&connection));
    let answer = service_fn(|request: Request<Incoming>| {
        let routes = routes.clone();
        routes.answer(request.map(Body::new), Arc::clone(&asking))
    });
    let mut served = hyper.serve_connection(TokioIo::new(socket), answer);
    let ended =
        poll_fn(|context| poll_served(&mut served, &connection, &mut silence, context)).await;
    let TimedSocket {
        mut stream,
        refused,
        ..
    } = served.into_parts().io.into_inner();
    let saves_resources = match refused {
        Some(refusal) => refusal.is_for_memory(),
        None => matches!(ended, Err(WaitEnd::Overdue)),
    };
    let metrics = &server.service.metrics;
    if saves_resources {
        metrics.shed.increment();
    }
    let answered = refused.map(|refusal| refusal.answer(&server));
    let status = match (&answered, &ended) {
        (Some((status, _)), _) => *status,
        (None, Ok(Err(error))) => status_of(error),
        (None, _) => None,
    };
    if let Some(status) = status {
        metrics.count_status(status);
    }
    if let Some((_, answer)) = answered {
        let _ = stream.try_write(&answer);
        linger(&mut stream, &connection).await;
    }
}

/// Returns the status of hyper's own answer to a request that it could not parse.
fn status_of(error: &hyper::Error) -> Option<u16> {
    error
        .is_parse()
        .then_some(if error.is_parse_too_large() { 431 } else { 400 })
}

async fn serve_http2(stream: Stream, connection: Connection, routes: Routes) {
    let server = Arc::clone(&routes.server);
    http2::serve(
        stream,
        Arc::new(connection),
        &server,
        |arrived, held, context| {
            answer_http2(arrived, held, &routes, context);
        },
    )
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
        let response = if asks {
            authz::without_memory(&server)
        } else {
            overloaded()
        };
        server.service.metrics.shed.increment();
        server
            .service
            .metrics
            .count_status(response.status().as_u16());
        // The sending fails only if the client has disconnected or cancelled the request.
        let _ = respond.send_response(response, true);
        return;
    }
    // The body's memory is already counted, by `held_by`. Its deadline is twice that of `in_time`,
    // so that a client that is late gets a 408 response before its stream is reset.
    let request = exchange::receive(request, held, None, 2 * exchange::patience(&server));
    let routes = routes.clone();
    let answered = routes.answer(request, Arc::clone(held.connection()));
    let serving = Arc::clone(&server);
    let answered = async move { in_time(&serving, answered).await };
    exchange::answer(server, answered, respond, share, context);
}

/// Returns the most bytes that a request can hold: its head, and its body's announced or largest
/// permitted length.
fn held_by(request: &Request<RecvStream>, server: &Server) -> usize {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let announced = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let longest = if request.body().is_end_stream() {
        0
    } else {
        server.config.max_body
    };
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
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    response
}

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
    /// Returns the response to a request of an HTTP/1.1 or HTTP/2 connection.
    async fn answer(
        self,
        request: Request<Body>,
        connection: Arc<Connection>,
    ) -> Result<Response, Infallible> {
        let Self {
            server,
            mut router,
            peer,
            asks,
        } = self;
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
            server
                .service
                .metrics
                .count_status(response.status().as_u16());
        }
        let guesses = response.status() == StatusCode::UNAUTHORIZED && connection.refuses_a_token();
        if guesses {
            sleep(GUESSING).await;
        }
        // The rest of a body that is too long is not read, so that no further request can be.
        let leaves_body = response.status() == StatusCode::PAYLOAD_TOO_LARGE;
        if (guesses || leaves_body || server.connections.are_stopping()) && !http2 {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

/// Returns the result of `served`, or the reason why the connection must end before `served` does.
/// A stopping server still answers a request in flight; its response has `Connection: close`.
fn poll_served<F: Future + Unpin>(
    served: &mut F,
    connection: &Connection,
    silence: &mut StopGrace,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output, WaitEnd>> {
    let served = Pin::new(served).poll(context);
    let ended = silence.poll(connection, connection.is_busy(), context);
    match served {
        Poll::Ready(served) => Poll::Ready(Ok(served)),
        Poll::Pending => ended.map(Err),
    }
}
