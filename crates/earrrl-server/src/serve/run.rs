//! A server's life: listen, serve, reload, stop.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use earrrl::Clock;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream as Stream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};

use super::accept::{accept, listen};
use super::workers::{Accepted, Workers};
use super::xds;
use crate::config::envoy::ControlPlane;
use crate::config::envoy::load::files;
use crate::config::{Config, ConfigError};
use crate::connections::{Connection, Refused};
use crate::protocol::grpc::{self, Services};
use crate::protocol::{http, resp};
use crate::server::Server;

/// How long the first request may wait for the engine to be at work.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// The protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Resp,
    Grpc,
}

/// A server that listens.
#[derive(Debug)]
pub struct Running {
    /// Its shared parts.
    pub server: Arc<Server>,
    /// Where HTTP is served.
    pub http: Option<SocketAddr>,
    /// Where RESP is served.
    pub resp: Option<SocketAddr>,
    /// Where gRPC is served.
    pub grpc: Option<SocketAddr>,
    services: Services,
    control_plane: Option<ControlPlane>,
    listeners: Vec<(Protocol, TcpListener)>,
    workers: Workers<Protocol>,
}

/// The signals that a server heeds. They are caught from here on, so this comes before anybody is
/// told that it serves.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Catches them.
    ///
    /// # Errors
    /// When they can't be.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// The files that a server's configuration comes from.
pub struct ConfigSource {
    /// Where they are; of a folder, every file in it.
    pub paths: Vec<PathBuf>,
    /// Reads it, and adds what the command line says.
    pub load: Box<dyn Fn() -> Result<Config, ConfigError> + Send>,
}

/// Why a server could not be started.
#[derive(Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

impl Running {
    /// Opens the sockets and starts the threads. It accepts once [`Running::until_signal`] or
    /// [`Running::until`] is called.
    ///
    /// # Errors
    /// When an address can't be listened on, or may not be without a token.
    pub fn start(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        if let Some(why) = config.server.exposed() {
            return Err(StartError(why));
        }
        let server = Server::new(config, clock).map_err(|error| StartError(error.to_string()))?;
        let mut listeners = Vec::new();
        let mut open = |protocol, address: Option<SocketAddr>| {
            let Some(address) = address else { return Ok(None) };
            let failed =
                |error: io::Error| StartError(format!("can't listen on {address}: {error}"));
            let listener = listen(address).map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            listeners.push((protocol, listener));
            Ok(Some(bound))
        };
        let http = open(Protocol::Http, config.server.http)?;
        let resp = open(Protocol::Resp, config.server.resp)?;
        let grpc = open(Protocol::Grpc, config.server.grpc)?;
        let services = grpc::services();
        let workers = start_workers(&server, &services)
            .map_err(|error| StartError(format!("can't start a thread: {error}")))?;
        let control_plane = config.envoy.control_plane.clone();
        Ok(Self { server, http, resp, grpc, services, control_plane, listeners, workers })
    }

    /// Serves until SIGTERM or SIGINT; reloads the file on SIGHUP and when it changes.
    pub async fn until_signal(self, signals: Signals, source: Option<ConfigSource>) {
        let Signals { mut terminate, mut interrupt, hangup } = signals;
        let reloading = tokio::spawn(reload_forever(Arc::clone(&self.server), source, hangup));
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
                _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
            }
        };
        self.until(stop).await;
        reloading.abort();
    }

    /// Serves until `stop`, then answers what is under way.
    pub async fn until(self, stop: impl Future<Output = ()>) {
        let Self { server, services, control_plane, listeners, workers, .. } = self;
        let follow = |plane| tokio::spawn(xds::follow(Arc::clone(&server), plane));
        let following = control_plane.map(follow);
        services.announce_start().await;
        server.service.engine().ready(ENGINE_PATIENCE).await;
        let ticking = tokio::spawn(tick_forever(Arc::clone(&server)));
        let workers = Arc::new(workers);
        let accepting = listeners.into_iter().map(|(protocol, listener)| {
            tokio::spawn(accept_all(protocol, listener, Arc::clone(&server), Arc::clone(&workers)))
        });
        let accepting: Vec<_> = accepting.collect();
        stop.await;

        server.announce_stop();
        services.announce_stop().await;
        sleep(Duration::from_secs(server.config.shutdown_delay.into())).await;
        for task in accepting {
            task.abort();
            // Awaited, so that its listener is closed.
            let _ = task.await;
        }
        server.connections.stop();
        let patience = Duration::from_secs(server.config.shutdown_timeout.into());
        if timeout(patience, server.connections.gone()).await.is_err() {
            tracing::warn!(connections = server.connections.len(), "still open; closing them");
        }
        ticking.abort();
        following.inspect(|task| task.abort());
        tracing::info!(decisions = server.service.metrics.outcomes.total(), "stopped");
    }
}

fn start_workers(server: &Arc<Server>, services: &Services) -> io::Result<Workers<Protocol>> {
    let cores = || std::thread::available_parallelism().map_or(1, Into::into);
    let threads = server.config.threads.unwrap_or_else(cores);
    let router = http::router(Arc::clone(server));
    let shared = (Arc::clone(server), router, services.clone());
    Workers::start(threads, move |protocol, stream, connection| {
        serve_one(protocol, stream, connection, shared.clone())
    })
}

async fn serve_one(
    protocol: Protocol,
    stream: Stream,
    connection: Connection,
    (server, router, services): (Arc<Server>, Router, Services),
) {
    match protocol {
        Protocol::Grpc => {
            Box::pin(grpc::serve::serve(stream, connection, server, services)).await;
        }
        // Boxed, so that the larger of the two does not set the size of both.
        Protocol::Http => Box::pin(http::serve::serve(stream, connection, server, router)).await,
        Protocol::Resp => {
            let session = resp::session::Session::new(server, connection.id());
            resp::serve::serve(stream, connection, session).await;
        }
    }
}

async fn accept_all(
    protocol: Protocol,
    listener: TcpListener,
    server: Arc<Server>,
    workers: Arc<Workers<Protocol>>,
) {
    let metrics = &server.service.metrics;
    let pass_on = |stream, connection| {
        metrics.accepted.increment();
        workers.serve(Accepted { protocol, stream, connection });
    };
    let refuse = |stream: &TcpStream, refused| {
        metrics.refused.increment();
        say_refused(protocol, stream, refused);
    };
    accept(listener, Arc::clone(&server.connections), pass_on, refuse).await;
}

/// Tells a client why it is not served, if that takes no waiting.
fn say_refused(protocol: Protocol, stream: &TcpStream, refused: Refused) {
    let line = match (protocol, refused) {
        (Protocol::Resp, Refused::Full) => "-ERR max number of clients reached\r\n",
        (Protocol::Resp, Refused::AddressFull) => "-ERR too many connections from this address\r\n",
        (Protocol::Resp, Refused::Stopping) => "-ERR the server is stopping\r\n",
        // A client that speaks HTTP/2 tries again when the connection is closed.
        (Protocol::Grpc, _) => return,
        (Protocol::Http, _) => {
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        }
    };
    // It is being closed in any case.
    let _ = SockRef::from(stream).send(line.as_bytes());
}

/// Once a second, the deadlines of connections are looked at.
async fn tick_forever(server: Arc<Server>) {
    let mut seconds = each_second();
    loop {
        seconds.tick().await;
        server.connections.tick();
    }
}

fn each_second() -> Interval {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds
}

/// Reloads on SIGHUP and when the file has changed. It is looked at once a second: that sees a file
/// that is replaced, a symbolic link that is turned (as Kubernetes does) and network file systems,
/// where notifications see one of these or none. A change counts once it has stood for a second: a
/// file that is being written is empty for a moment, and an empty one has no rules.
async fn reload_forever(server: Arc<Server>, source: Option<ConfigSource>, mut hangup: Signal) {
    let Some(source) = source else {
        while hangup.recv().await.is_some() {
            tracing::warn!("SIGHUP: there is no configuration file to reload");
        }
        return;
    };
    let mut seconds = each_second();
    let mut loaded = stamps(&source.paths);
    let mut last = loaded.clone();
    loop {
        tokio::select! {
            _ = hangup.recv() => {}
            _ = seconds.tick() => {
                let now = stamps(&source.paths);
                let settled = now == last;
                last = now;
                if last == loaded || !settled {
                    continue;
                }
            }
        }
        loaded = stamps(&source.paths);
        reload(&server, (source.load)());
    }
}

/// What changes when a file does, or a symbolic link on the way to it.
type Stamp = (PathBuf, SystemTime, u64);

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((std::fs::canonicalize(file).ok()?, metadata.modified().ok()?, metadata.len()))
}

/// The stamps of all files, those of folders included.
fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    let inside = |path: &PathBuf| files(std::slice::from_ref(path)).unwrap_or_default();
    paths.iter().flat_map(inside).map(|file| stamp(&file)).collect()
}

fn reload(server: &Server, config: Result<Config, ConfigError>) {
    if let Ok(config) = &config
        && config.server != server.config
    {
        tracing::warn!("[server] has changed; that takes effect at the next start only");
    }
    match server.reload(config.map_err(|error| error.to_string())) {
        Ok(()) => tracing::info!(rules = server.service.rules().len(), "reloaded"),
        Err(error) => tracing::error!(%error, "not reloaded; the rules before stay in force"),
    }
}
