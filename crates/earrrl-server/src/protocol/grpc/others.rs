//! Calls that tonic's services answer, health and reflection: their bodies over `h2`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use hyper::body::{Body as _, Bytes, Frame};
use tower::ServiceExt as _;

use super::reply::count;
use crate::server::Server;

/// Answers a call, to its end or until the client takes it back.
pub(super) async fn answer(
    server: &Server,
    services: Router,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let mut answering = pin!(services.oneshot(request.map(|body| Body::new(Received(body)))));
    let answered = poll_fn(|context| match answering.as_mut().poll(context) {
        Poll::Ready(answered) => Poll::Ready(Some(never(answered))),
        Poll::Pending => respond.poll_reset(context).map(|_| None),
    });
    let Some(answered) = answered.await else { return };
    count(server, Some(answered.headers()));
    // A client that has gone is told nothing.
    let _ = send(answered, &mut respond).await;
}

async fn send(
    response: Response<Body>,
    respond: &mut SendResponse<Bytes>,
) -> Result<(), axum::Error> {
    let (head, mut body) = response.into_parts();
    let head = Response::from_parts(head, ());
    let whole = body.is_end_stream();
    let mut stream = respond.send_response(head, whole).map_err(axum::Error::new)?;
    if whole {
        return Ok(());
    }
    while let Some(frame) = poll_fn(|context| poll_frame(&mut body, &mut stream, context)).await {
        match frame?.into_data() {
            Ok(data) => send_data(data, &mut stream).await?,
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                return stream.send_trailers(trailers).map_err(axum::Error::new);
            }
        }
    }
    stream.send_data(Bytes::new(), true).map_err(axum::Error::new)
}

/// The next part of an answer; a client that takes its call back has no more.
fn poll_frame(
    body: &mut Body,
    stream: &mut SendStream<Bytes>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
    match Pin::new(body).poll_frame(context) {
        Poll::Ready(frame) => Poll::Ready(frame),
        Poll::Pending => stream.poll_reset(context).map(|_| Some(Err(gone()))),
    }
}

/// Sends data as fast as the client takes it.
async fn send_data(mut data: Bytes, stream: &mut SendStream<Bytes>) -> Result<(), axum::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let capacity = poll_fn(|context| stream.poll_capacity(context)).await;
        let room = capacity.ok_or_else(gone)?.map_err(axum::Error::new)?;
        let part = data.split_to(room.min(data.len()));
        stream.send_data(part, false).map_err(axum::Error::new)?;
    }
    Ok(())
}

fn gone() -> axum::Error {
    axum::Error::new(h2::Error::from(h2::Reason::CANCEL))
}

/// A request's body.
struct Received(RecvStream);

impl hyper::body::Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        self.0.poll_data(context).map_ok(|data| {
            // Read, so the client may send more.
            let _ = self.0.flow_control().release_capacity(data.len());
            Frame::data(data)
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// No error can come of it.
fn never<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}
