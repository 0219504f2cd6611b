//! A charge after the decision, which goes on if nothing waits for it any longer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A charge in flight. If this value is dropped, a task in tokio's runtime completes the charge.
pub(crate) struct PendingCharge(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl PendingCharge {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn new(charge: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(charge)))
    }
}

impl Future for PendingCharge {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(charge) = &mut self.0 else {
            return Poll::Ready(());
        };
        let poll = charge.as_mut().poll(context);
        if poll.is_ready() {
            self.0 = None;
        }
        poll
    }
}

impl Drop for PendingCharge {
    fn drop(&mut self) {
        let Some(mut charge) = self.0.take() else {
            return;
        };
        // An engine in memory completes the charge in the first poll.
        if charge
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
        {
            finish_in_background(charge);
        }
    }
}

#[cfg(feature = "tokio")]
fn finish_in_background(charge: Pin<Box<dyn Future<Output = ()> + Send>>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(charge);
    }
}

#[cfg(not(feature = "tokio"))]
fn finish_in_background(_: Pin<Box<dyn Future<Output = ()> + Send>>) {}
