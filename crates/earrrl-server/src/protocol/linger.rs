//! Closes a connection in a way that lets the client still read the last response.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::connections::{Connection, ConnectionState};
use crate::stream::Stream;

/// The time that a client has to read the last response, after the server has begun to stop.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Closes the sending half of the connection, then discards what the client sends until the client
/// closes or its time is up. If bytes were left unread, the kernel would reset the connection and
/// discard the part of the response that the client has not read.
pub(super) async fn linger(stream: &mut Stream, connection: &Connection) {
    connection.hold(0);
    connection.finish();
    if stream.shutdown().await.is_err() {
        return;
    }
    let (mut unread, mut last_words) = ([0; 512], None);
    poll_fn(|context| {
        if is_over(connection, &mut last_words, context) {
            return Poll::Ready(());
        }
        loop {
            let mut buffer = ReadBuf::new(&mut unread);
            match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    })
    .await;
}

/// Returns true once the client's time to read the last response is over: at the connection's
/// deadline, or `LAST_WORDS` after the server began to stop.
fn is_over(
    connection: &Connection,
    last_words: &mut Option<Pin<Box<Sleep>>>,
    context: &mut Context<'_>,
) -> bool {
    match connection.standing(context) {
        ConnectionState::Good => false,
        ConnectionState::Overdue => true,
        ConnectionState::Stopping => {
            let last_words = last_words.get_or_insert_with(|| Box::pin(sleep(LAST_WORDS)));
            last_words.as_mut().poll(context).is_ready()
        }
    }
}
