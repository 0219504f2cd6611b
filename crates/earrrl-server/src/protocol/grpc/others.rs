//! Calls that tonic's services answer, health and reflection: their bodies over `h2`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use hyper::body::{Body as _, Bytes, Frame};
use tower::ServiceExt as _;

use super::reply::count;
use crate::protocol::held::{self, HeldShare};
use crate::server::Server;

/// Answers a call, to its end or until the client takes it back.
pub(super) async fn answer(
    server: &Server,
    services: Router,
    request: Request<RecvStream>,
    share: HeldShare,
    mut respond: SendResponse<Bytes>,
) {
    let came = held::head(request.headers());
    let request = request.map(|body| Body::new(Received { body, share, came }));
    let mut answering = pin!(services.oneshot(request));
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

/// A request's body. What has come of it counts as held, since it may be kept.
struct Received {
    body: RecvStream,
    share: HeldShare,
    came: usize,
}

impl hyper::body::Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let Some(data) = ready!(self.body.poll_data(context)?) else { return Poll::Ready(None) };
        // Read, so the client may send more.
        let _ = self.body.flow_control().release_capacity(data.len());
        let came = self.came + data.len();
        self.came = came;
        if !self.share.set(came) {
            return Poll::Ready(Some(Err(h2::Reason::ENHANCE_YOUR_CALM.into())));
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// No error can come of it.
fn never<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}
