//! Closing a connection so that the last answer arrives.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::connections::{Connection, ConnectionState};
use crate::stream::Stream;

/// The time that a client has to read the last answer of a server that is stopping.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Closes the sending half, then reads until the client closes or its time is up. Bytes left unread would
/// make the kernel reset the connection, and discard what the client has not fetched.
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

/// Returns true if the client has had its time. An idle client does not look, so that a stop does not
/// wait for it.
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
