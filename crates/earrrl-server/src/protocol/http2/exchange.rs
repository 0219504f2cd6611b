//! The body and the response of one HTTP/2 request that a service answers, with their deadlines.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, Response, header};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use httpdate::fmt_http_date;
use hyper::body::{Body as _, Bytes, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout};

use super::held::{self, HeldBytes, HeldShare};
use crate::server::Server;

/// The reason why a response was not sent completely.
enum Unsent {
    /// The client has disconnected or cancelled its request, or the service has failed.
    Broken,
    /// The memory limit of all connections together was reached.
    Heavy,
    /// The client did not read the response in time.
    Late,
}

impl From<h2::Error> for Unsent {
    fn from(_: h2::Error) -> Self {
        Self::Broken
    }
}

/// Returns the request with a body of the type that services read. The whole body must arrive
/// within `patience`. If a `share` is passed, the bytes of the request's head and body count as held in it until
/// the body is dropped. The part of the body that the service does not read is discarded.
pub(in crate::protocol) fn receive(
    request: Request<RecvStream>,
    held: &Arc<HeldBytes>,
    share: Option<HeldShare>,
    patience: Duration,
) -> Request<Body> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let left = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    let arrived = held::head(request.headers()) - held::STREAM;
    let held = Arc::clone(held);
    request.map(|body| {
        Body::new(Received {
            body: Some(body),
            held,
            share,
            arrived,
            left,
            patience,
            late: None,
        })
    })
}

/// Sends the response of a service, at once if it is ready and the client takes it, and otherwise in a task. The
/// `share` counts the bytes of the request until the response is sent.
///
/// The service's future takes several kilobytes. In a box of its own it is freed once the response is known, and does
/// not wait with the response for the client.
pub(in crate::protocol) fn answer(
    server: Arc<Server>,
    answered: impl Future<Output = Response<Body>> + Send + 'static,
    respond: SendResponse<Bytes>,
    share: HeldShare,
    context: &mut Context<'_>,
) {
    let answered = Box::pin(answered);
    let mut answering =
        Box::pin(async move { send_answer(&server, answered, respond, share).await });
    if answering.as_mut().poll(context).is_pending() {
        tokio::spawn(answering);
    }
}

/// Sends the response of a service completely, unless the client cancels its request before.
async fn send_answer(
    server: &Server,
    mut answered: Pin<Box<impl Future<Output = Response<Body>>>>,
    mut respond: SendResponse<Bytes>,
    share: HeldShare,
) {
    let first = poll_fn(|context| match answered.as_mut().poll(context) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => respond.poll_reset(context).map(|_| None),
    });
    let Some(answer) = first.await else { return };
    drop(answered);
    let (mut head, body) = answer.into_parts();
    set_headers(&mut head.headers, &body);
    let is_empty = body.is_end_stream();
    let Ok(stream) = respond.send_response(Response::from_parts(head, ()), is_empty) else {
        return;
    };
    if !is_empty {
        let mut sending = Sending {
            server,
            stream,
            share,
        };
        let sent = sending.body(body).await;
        sending.conclude(&sent);
    }
}

/// Returns the time within which a client must send a request, and also the time within which it
/// must read a response.
pub(in crate::protocol) fn patience(server: &Server) -> Duration {
    Duration::from_secs(server.config.limits.request.into())
}

/// Adds the headers that HTTP requires and services leave out, and removes `connection`.
fn set_headers(headers: &mut HeaderMap, body: &Body) {
    if let Some(length) = body.size_hint().exact()
        && !body.is_end_stream()
    {
        headers
            .entry(header::CONTENT_LENGTH)
            .or_insert_with(|| HeaderValue::from(length));
    }
    // HTTP/2 forbids this header.
    headers.remove(header::CONNECTION);
    if let Some(date) = date() {
        headers.entry(header::DATE).or_insert(date);
    }
}

/// A response whose head has been sent and whose body follows.
struct Sending<'s> {
    server: &'s Server,
    stream: SendStream<Bytes>,
    share: HeldShare,
}

impl Sending<'_> {
    async fn body(&mut self, mut body: Body) -> Result<(), Unsent> {
        while let Some(frame) = poll_fn(|context| self.poll_frame(&mut body, context)).await {
            match frame?.into_data() {
                Ok(data) => self.data(data).await?,
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return Ok(self.stream.send_trailers(trailers)?);
                }
            }
        }
        Ok(self.stream.send_data(Bytes::new(), true)?)
    }

    /// Returns the next part of the response's body, or an error if the client cancels its request.
    fn poll_frame(
        &mut self,
        body: &mut Body,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unsent>>> {
        match Pin::new(body).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(|_| Unsent::Broken))),
            Poll::Pending => self
                .stream
                .poll_reset(context)
                .map(|_| Some(Err(Unsent::Broken))),
        }
    }

    /// Sends one part of the response's body. Returns an error if the client does not read it in
    /// time.
    async fn data(&mut self, data: Bytes) -> Result<(), Unsent> {
        // The length counts twice, since the buffer of this part may have grown by doubling.
        if !self.share.set(held::STREAM + 2 * data.len()) {
            return Err(Unsent::Heavy);
        }
        self.share.count_unsent(2 * data.len());
        let patience = patience(self.server);
        let sending = timeout(patience, send_data(data, &mut self.stream));
        sending.await.map_err(|_| Unsent::Late)?
    }

    /// Resets the stream if its response was not sent completely. Otherwise `h2` would keep the
    /// unsent part in memory until the client reads it.
    fn conclude(&mut self, sent: &Result<(), Unsent>) {
        let reason = match sent {
            Ok(()) => return,
            Err(Unsent::Broken) => Reason::INTERNAL_ERROR,
            Err(Unsent::Heavy) => Reason::ENHANCE_YOUR_CALM,
            Err(Unsent::Late) => Reason::CANCEL,
        };
        if reason != Reason::INTERNAL_ERROR {
            self.server.service.metrics.shed.increment();
        }
        self.stream.send_reset(reason);
    }
}

/// Sends data as fast as the client's flow-control windows admit it.
async fn send_data(mut data: Bytes, stream: &mut SendStream<Bytes>) -> Result<(), Unsent> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let capacity = poll_fn(|context| stream.poll_capacity(context)).await;
        let capacity = capacity.ok_or(Unsent::Broken)??;
        let part = data.split_to(capacity.min(data.len()));
        stream.send_data(part, false)?;
    }
    Ok(())
}

/// The body of an HTTP/2 request, as services read it.
struct Received {
    /// The rest of the stream; `None` if it must not be read any more.
    body: Option<RecvStream>,
    held: Arc<HeldBytes>,
    share: Option<HeldShare>,
    /// The number of bytes that count in `share`.
    arrived: usize,
    /// The number of bytes that have not arrived yet, according to the request's `content-length`.
    left: Option<u64>,
    patience: Duration,
    /// The deadline of the whole body, which is set when the service first has to wait for a part
    /// of it.
    late: Option<Pin<Box<Sleep>>>,
}

impl Received {
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let patience = self.patience;
        self.late
            .get_or_insert_with(|| Box::pin(sleep(patience)))
            .as_mut()
            .poll(context)
    }

    /// Stops reading, and returns the reason as an error.
    fn break_off(&mut self, reason: Reason) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        self.body = None;
        Poll::Ready(Some(Err(reason.into())))
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        // A client that was waited for in vain gets no more time.
        if let (Some(body), None) = (self.body.take(), &self.late) {
            discard(body, HeldShare::new(&self.held), self.patience);
        }
    }
}

impl hyper::body::Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let arrived = self.arrived;
        if self.share.as_mut().is_some_and(|share| !share.set(arrived)) {
            return self.break_off(Reason::ENHANCE_YOUR_CALM);
        }
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let Poll::Ready(data) = body.poll_data(context)? else {
            ready!(self.poll_late(context));
            return self.break_off(Reason::CANCEL);
        };
        let Some(data) = data else {
            return Poll::Ready(None);
        };
        // These bytes have been read, so the client may send as many more.
        let _ = body.flow_control().release_capacity(data.len());
        self.arrived += data.len();
        self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() {
            return SizeHint::with_exact(0);
        }
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

thread_local! {
    static LAST: RefCell<(u64, Option<HeaderValue>)> = const { RefCell::new((0, None)) };
}

/// Returns the present time as the value of a `date` header.
fn date() -> Option<HeaderValue> {
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    LAST.with_borrow_mut(|last| {
        if last.1.is_none() || last.0 != second {
            *last = (second, HeaderValue::try_from(fmt_http_date(now)).ok());
        }
        last.1.clone()
    })
}

/// The most bytes that are read. The client may have to be stopped from sending more.
const MOST: usize = 64 * 1024;

/// Reads and drops the rest of a request's body for at most `patience`, in a task. Does nothing if
/// the body has ended or memory is short.
///
/// If the stream were dropped before all of the body has arrived, `h2` would send RST_STREAM after
/// the response. A client must not discard the response then (RFC 9113, section 8.1), but curl 7.88
/// does if it has not sent its body yet.
fn discard(body: RecvStream, mut share: HeldShare, patience: Duration) {
    if body.is_end_stream() || !share.set(held::STREAM) {
        return;
    }
    // A stream may be dropped while the runtime shuts down.
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    runtime.spawn(async move {
        let _share = share;
        // It makes no difference here how the reading ended.
        let _ = timeout(patience, read(body)).await;
    });
}

async fn read(mut body: RecvStream) {
    let mut read = 0;
    while let Some(Ok(data)) = body.data().await {
        read += data.len();
        if read > MOST {
            return;
        }
        // These bytes have been read, so the client may send as many more.
        let _ = body.flow_control().release_capacity(data.len());
    }
}
