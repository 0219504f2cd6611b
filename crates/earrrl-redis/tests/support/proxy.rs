//! A proxy that can be slow, stall now and then as lost packets make a connection do, or swallow
//! everything without closing anything: a black-holed connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub struct Proxy {
    pub port: u16,
    /// Connections numbered below this are black holes.
    swallowed: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    weather: Arc<Weather>,
}

/// What becomes of a piece on its way.
#[derive(Default)]
struct Weather {
    /// Milliseconds that each takes.
    latency: AtomicU64,
    /// One in so many stalls, and all behind it; none at 0.
    stalls: AtomicU64,
    pieces: AtomicU64,
}

impl Weather {
    async fn passes(&self) {
        let latency = Duration::from_millis(self.latency.load(Ordering::SeqCst));
        let piece = self.pieces.fetch_add(1, Ordering::SeqCst);
        let stalls = self.stalls.load(Ordering::SeqCst);
        let stalled = stalls > 0 && piece.is_multiple_of(stalls);
        // What Linux waits at least before it sends a packet again.
        let stall = if stalled { Duration::from_millis(200) } else { Duration::ZERO };
        if !(latency + stall).is_zero() {
            tokio::time::sleep(latency + stall).await;
        }
    }
}

impl Proxy {
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (swallowed, accepted) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let weather = Arc::<Weather>::default();
        let proxy = Self {
            port,
            swallowed: swallowed.clone(),
            accepted: accepted.clone(),
            weather: weather.clone(),
        };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Ordering::SeqCst);
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                let (swallowed, weather) = (swallowed.clone(), weather.clone());
                tokio::spawn(forward(near_in, far_out, number, swallowed.clone(), weather.clone()));
                tokio::spawn(forward(far_in, near_out, number, swallowed, weather));
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Every piece takes so long, each way.
    pub fn set_latency(&self, latency: Duration) {
        self.weather.latency.store(latency.as_millis() as u64, Ordering::SeqCst);
    }

    /// One piece in so many is lost at first; 0 for none.
    pub fn lose_one_in(&self, pieces: u64) {
        self.weather.stalls.store(pieces, Ordering::SeqCst);
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
    weather: Arc<Weather>,
) {
    let mut buffer = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        weather.passes().await;
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
