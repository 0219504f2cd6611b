//! A TCP proxy that can delay data, stall at times as after packet loss, drop all data without
//! closing (a black hole), or close connections at any piece of data in either direction.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

pub struct Proxy {
    pub port: u16,
    accepted: Arc<AtomicUsize>,
    fate: Arc<Fate>,
    weather: Arc<Weather>,
}

/// The faults of connections. Each applies to the connections whose numbers are below its value.
#[derive(Default)]
struct Fate {
    /// Connections whose data is dropped in both directions.
    swallowed: AtomicUsize,
    /// Connections on which answers are dropped.
    muted: AtomicUsize,
    /// Connections that are closed.
    cut: watch::Sender<usize>,
}

/// The faults of pieces of data on their way.
#[derive(Default)]
struct Weather {
    /// The delay of each piece, in microseconds.
    latency: AtomicU64,
    /// One in this many pieces stalls, and delays all after it; 0 for none.
    stalls: AtomicU64,
    pieces: AtomicU64,
    /// One in this many pieces is lost, and its connection closed; 0 for none.
    cuts: AtomicU64,
    cut: AtomicU64,
}

impl Weather {
    /// Returns true if the next piece is to be lost with its connection.
    fn cuts(&self) -> bool {
        let one_in = self.cuts.load(Ordering::SeqCst);
        let cuts = one_in > 0 && RandomState::new().hash_one(()).is_multiple_of(one_in);
        self.cut.fetch_add(u64::from(cuts), Ordering::SeqCst);
        cuts
    }

    /// Returns the time for which the next piece is under way.
    fn delay(&self) -> Duration {
        let latency = Duration::from_micros(self.latency.load(Ordering::SeqCst));
        let piece = self.pieces.fetch_add(1, Ordering::SeqCst);
        let stalls = self.stalls.load(Ordering::SeqCst);
        let stalled = stalls > 0 && piece.is_multiple_of(stalls);
        // The least time after which Linux sends a lost packet again.
        let stall = if stalled {
            Duration::from_millis(200)
        } else {
            Duration::ZERO
        };
        latency + stall
    }
}

impl Proxy {
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepted = Arc::<AtomicUsize>::default();
        let fate = Arc::<Fate>::default();
        let weather = Arc::<Weather>::default();
        let proxy = Self {
            port,
            accepted: accepted.clone(),
            fate: fate.clone(),
            weather: weather.clone(),
        };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Ordering::SeqCst);
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else {
                    continue;
                };
                near.set_nodelay(true).ok();
                far.set_nodelay(true).ok();
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                let closed = watch::Sender::new(false);
                let way = |is_answer| Way {
                    number,
                    closed: closed.clone(),
                    is_answer,
                    fate: fate.clone(),
                    weather: weather.clone(),
                };
                tokio::spawn(way(false).until_cut(near_in, far_out));
                tokio::spawn(way(true).until_cut(far_in, near_out));
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the delay of every piece, in either direction.
    pub fn set_latency(&self, latency: Duration) {
        self.weather
            .latency
            .store(latency.as_micros() as u64, Ordering::SeqCst);
    }

    /// Stalls one in `pieces` pieces as if its packet were lost at first; 0 for none.
    pub fn lose_one_in(&self, pieces: u64) {
        self.weather.stalls.store(pieces, Ordering::SeqCst);
    }

    /// Loses one in `pieces` pieces together with its connection; 0 for none.
    pub fn cut_one_in(&self, pieces: u64) {
        self.weather.cuts.store(pieces, Ordering::SeqCst);
    }

    /// Returns the number of connections that were closed at a lost piece.
    pub fn cuts(&self) -> u64 {
        self.weather.cut.load(Ordering::SeqCst)
    }

    /// Drops all data on the present connections.
    pub fn swallow(&self) {
        self.fate
            .swallowed
            .store(self.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Drops all answers on the present connections.
    pub fn mute(&self) {
        self.fate
            .muted
            .store(self.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Closes the present connections.
    pub fn cut(&self) {
        self.fate
            .cut
            .send_replace(self.accepted.load(Ordering::SeqCst));
    }
}

/// One direction of a connection.
struct Way {
    number: usize,
    is_answer: bool,
    /// Closes both directions when set.
    closed: watch::Sender<bool>,
    fate: Arc<Fate>,
    weather: Arc<Weather>,
}

impl Way {
    async fn until_cut(self, from: impl AsyncReadExt + Unpin, to: impl AsyncWriteExt + Unpin) {
        let mut cut = self.fate.cut.subscribe();
        let number = self.number;
        let mut closed = self.closed.subscribe();
        tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => {}
            _ = cut.wait_for(|cut| number < *cut) => {}
            () = self.forward(from, to) => {}
        }
    }

    fn is_swallowed(&self) -> bool {
        let below = |of: &AtomicUsize| self.number < of.load(Ordering::SeqCst);
        below(&self.fate.swallowed) || self.is_answer && below(&self.fate.muted)
    }

    /// Passes pieces on in their order, each after its delay. Several may be under way at once.
    async fn forward(
        &self,
        mut from: impl AsyncReadExt + Unpin,
        mut to: impl AsyncWriteExt + Unpin,
    ) {
        let (sent, mut under_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        let reads = async move {
            let mut buffer = vec![0; 65_536];
            let mut arrives = Instant::now();
            while let Ok(read @ 1..) = from.read(&mut buffer).await {
                arrives = arrives.max(Instant::now() + self.weather.delay());
                if self.weather.cuts() {
                    self.closed.send_replace(true);
                    return;
                }
                sent.send((arrives, buffer[..read].to_vec())).ok();
            }
        };
        let writes = async {
            while let Some((arrives, piece)) = under_way.recv().await {
                if arrives > Instant::now() {
                    tokio::time::sleep_until(arrives).await;
                }
                if !self.is_swallowed() && to.write_all(&piece).await.is_err() {
                    return;
                }
            }
        };
        tokio::join!(reads, writes);
        // A black-holed connection is never closed, so that its peer does not notice.
        if self.is_swallowed() {
            std::future::pending::<()>().await;
        }
    }
}
