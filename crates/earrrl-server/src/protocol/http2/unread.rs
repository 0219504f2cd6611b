//! Reads the rest of a request's body that no service wanted.
//!
//! If the stream were dropped before all of the body has arrived, `h2` would send RST_STREAM after
//! the response. A client must not discard the response then (RFC 9113, section 8.1), but curl 7.88
//! does if it has not sent its body yet.

use std::time::Duration;

use h2::RecvStream;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::held::{self, HeldShare};

/// The most bytes that are read. The client may have to be stopped from sending more.
const MOST: usize = 64 * 1024;

/// Reads and drops the rest of a request's body for at most `patience`, in a task. Does nothing if
/// the body has ended or memory is short.
pub(in crate::protocol) fn discard(body: RecvStream, mut share: HeldShare, patience: Duration) {
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
