//! The threads that serve connections. Each has a current-thread runtime, and connections are
//! distributed evenly among the threads.
//!
//! One listener accepts for all threads. If each thread had a listener (SO_REUSEPORT), the kernel
//! would distribute connections by hash, for example 50 connections as 20 and 30. A second server
//! on the same port would also start without an error and take half of the clients.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// The serving of one connection, which is boxed, so that the task around it is small.
pub(super) type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A function that returns the future that serves a connection. One thread calls it and runs the future to its end.
type Begin = Box<dyn FnOnce() -> Serving + Send>;

/// The serving threads. They end once this is dropped and their connections are closed.
#[derive(Debug)]
pub(super) struct Workers {
    workers: Vec<Worker>,
    ended: Arc<Notify>,
}

#[derive(Debug)]
struct Worker {
    sender: UnboundedSender<(Begin, Arc<()>)>,
    /// An object that each connection of the thread shares, so that they can be counted.
    load: Arc<()>,
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// Returns an error if the system provides no thread or no event queue.
    pub(super) fn start(count: usize) -> io::Result<Self> {
        let ended = Arc::new(Notify::new());
        let workers = (0..count.max(1)).map(|index| Worker::start(index, Arc::clone(&ended)));
        Ok(Self {
            workers: workers.collect::<io::Result<_>>()?,
            ended,
        })
    }

    /// Waits until a thread has ended, which happens only by a fault as long as this is not
    /// dropped.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Hands a connection to the thread that has the fewest connections.
    pub(super) fn serve(&self, begin: Begin) {
        let least = self
            .workers
            .iter()
            .min_by_key(|worker| Arc::strong_count(&worker.load));
        if let Some(worker) = least {
            // If the thread has ended, sending drops the connection, which closes it.
            let _ = worker.sender.send((begin, Arc::clone(&worker.load)));
        }
    }
}

impl Worker {
    fn start(index: usize, ended: Arc<Notify>) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (sender, receiver) = mpsc::unbounded_channel();
        thread::Builder::new()
            .name(format!("serve-{index}"))
            .spawn(move || {
                let _ending = Ending(ended);
                runtime.block_on(receive(receiver));
            })?;
        Ok(Self {
            sender,
            load: Arc::default(),
        })
    }
}

async fn receive(mut receiver: UnboundedReceiver<(Begin, Arc<()>)>) {
    while let Some((begin, load)) = receiver.recv().await {
        let serving = begin();
        tokio::spawn(async move {
            let _load = load;
            serving.await;
        });
    }
}

/// Notifies the server when its thread ends, for example by a panic.
struct Ending(Arc<Notify>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_ends_is_noticed() {
        let workers = Workers::start(2).unwrap();
        workers.serve(Box::new(|| panic!("as a fault would")));
        workers.ended().await;
    }
}
