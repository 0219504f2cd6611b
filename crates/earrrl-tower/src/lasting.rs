//! Futures that go on if nothing waits for them any longer, such as charges after the decision.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

/// A future that is completed even if this value is dropped: at once if that is possible, and
/// otherwise by a task in tokio's runtime.
pub(crate) struct Lasting<T: 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

/// A charge in flight.
pub(crate) type PendingCharge = Lasting<()>;

impl<T: 'static> Lasting<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<T: 'static> Future for Lasting<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let output = ready!(future.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<T: 'static> Drop for Lasting<T> {
    fn drop(&mut self) {
        let Some(mut future) = self.0.take() else {
            return;
        };
        // An engine in memory completes the future in the first poll.
        let context = &mut Context::from_waker(Waker::noop());
        if future.as_mut().poll(context).is_pending() {
            finish_in_background(async move { drop(future.await) });
        }
    }
}

#[cfg(feature = "tokio")]
fn finish_in_background(future: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(future);
    }
}

#[cfg(not(feature = "tokio"))]
fn finish_in_background(_: impl Future<Output = ()> + Send + 'static) {}
