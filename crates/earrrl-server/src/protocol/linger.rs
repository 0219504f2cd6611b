//! Closes a connection in a way that lets the client still read the last response.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};

use crate::connections::{Connection, StopGrace};
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
    let mut unread = [0; 512];
    let mut last_words = StopGrace::new(LAST_WORDS);
    poll_fn(|context| {
        if last_words.poll(connection, false, context).is_ready() {
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
