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
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::thread;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::socket::Socket;
use crate::connections::Connection;
use crate::stream::Stream;

/// An accepted connection that is handed to the thread that will serve it.
#[derive(Debug)]
pub struct Accepted<P> {
    /// The protocol of the connection.
    pub protocol: P,
    /// The socket of the connection, which is non-blocking.
    pub socket: Socket,
    /// The place of the connection among all open connections, for limits and deadlines.
    pub connection: Connection,
}

/// The serving threads. They end once this is dropped and their connections are closed.
#[derive(Debug)]
pub struct Workers<P> {
    workers: Vec<Worker<P>>,
    ended: Arc<Notify>,
}

#[derive(Debug)]
struct Worker<P> {
    sender: UnboundedSender<Accepted<P>>,
    load: Arc<AtomicUsize>,
}

impl<P: Send + 'static> Workers<P> {
    /// Starts `count` threads that serve each connection with `serve`.
    ///
    /// # Errors
    /// Returns an error if the system provides no thread or no event queue.
    pub fn start<F, S>(count: usize, serve: S) -> io::Result<Self>
    where
        S: Fn(P, Stream, Connection) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let ended = Arc::new(Notify::new());
        let workers =
            (0..count.max(1)).map(|index| Worker::start(index, serve.clone(), Arc::clone(&ended)));
        Ok(Self {
            workers: workers.collect::<io::Result<_>>()?,
            ended,
        })
    }

    /// Waits until a thread has ended, which happens only by a fault as long as this is not
    /// dropped.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Hands a connection to the thread that has the fewest connections.
    pub fn serve(&self, accepted: Accepted<P>) {
        let least = self
            .workers
            .iter()
            .min_by_key(|worker| worker.load.load(Relaxed));
        if let Some(worker) = least {
            worker.load.fetch_add(1, Relaxed);
            // If the thread has ended, sending drops the connection, which closes it.
            let _ = worker.sender.send(accepted);
        }
    }
}

impl<P: Send + 'static> Worker<P> {
    fn start<F, S>(index: usize, serve: S, ended: Arc<Notify>) -> io::Result<Self>
    where
        S: Fn(P, Stream, Connection) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let load = Arc::new(AtomicUsize::new(0));
        let of_thread = Arc::clone(&load);
        thread::Builder::new()
            .name(format!("serve-{index}"))
            .spawn(move || {
                let _ending = Ending(ended);
                runtime.block_on(receive(receiver, of_thread, serve));
            })?;
        Ok(Self { sender, load })
    }
}

async fn receive<P, F, S>(
    mut receiver: UnboundedReceiver<Accepted<P>>,
    load: Arc<AtomicUsize>,
    serve: S,
) where
    S: Fn(P, Stream, Connection) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    while let Some(Accepted {
        protocol,
        socket,
        connection,
    }) = receiver.recv().await
    {
        let place = LoadShare(Arc::clone(&load));
        match socket.into_stream() {
            Ok(stream) => {
                let future = serve(protocol, stream, connection);
                tokio::spawn(Served {
                    future,
                    _place: place,
                });
            }
            Err(error) => tracing::warn!(%error, "a connection could not be registered"),
        }
    }
}

pin_project_lite::pin_project! {
    /// The future that serves one connection. An `async` block that awaited it would be twice its
    /// size.
    struct Served<F> {
        #[pin]
        future: F,
        _place: LoadShare,
    }
}

impl<F: Future<Output = ()>> Future for Served<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.project().future.poll(context)
    }
}

/// The part of one connection in the load of its thread, which is subtracted on drop.
struct LoadShare(Arc<AtomicUsize>);

impl Drop for LoadShare {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
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
    use std::future::Ready;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::server::Limits;
    use crate::connections::Connections;

    #[tokio::test]
    async fn a_thread_that_ends_is_noticed() {
        let fails = |(), _, _| -> Ready<()> { panic!("as a fault would") };
        let workers = Workers::start(2, fails).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let connections = Connections::new(Limits::default());
        let connection = connections.admit([127, 0, 0, 1].into()).unwrap();
        workers.serve(Accepted {
            protocol: (),
            socket: Socket::Tcp(stream),
            connection,
        });
        workers.ended().await;
    }
}
