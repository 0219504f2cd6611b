//! A proxy that can swallow everything without closing anything: a black-holed connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub struct Proxy {
    pub port: u16,
    /// Connections numbered below this are black holes.
    swallowed: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
}

impl Proxy {
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (swallowed, accepted) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let proxy = Self { port, swallowed: swallowed.clone(), accepted: accepted.clone() };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Ordering::SeqCst);
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                let swallowed = swallowed.clone();
                tokio::spawn(forward(near_in, far_out, number, swallowed.clone()));
                tokio::spawn(forward(far_in, near_out, number, swallowed));
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Swallows everything on the connections that there are now.
    pub fn swallow(&self) {
        self.swallowed.store(self.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    number: usize,
    swallowed: Arc<AtomicUsize>,
) {
    let mut buffer = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if number >= swallowed.load(Ordering::SeqCst)
            && to.write_all(&buffer[..read]).await.is_err()
        {
            return;
        }
    }
    // Nothing is closed that was swallowed: its peer must not learn.
    if number < swallowed.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
}
