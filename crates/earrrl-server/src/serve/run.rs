//! A server's life: listen, serve, reload, stop.

use std::fmt;
use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use earrrl::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};

use super::accept::accept;
use super::handover::HandedOver;
use super::socket::{Listener, Socket};
use super::stamps::Stamps;
use super::workers::{Accepted, Workers};
use super::xds;
use crate::config::envoy::ControlPlane;
use crate::config::envoy::load::files;
use crate::config::listen::{Address, Protocol};
use crate::config::{Config, ConfigError, ServerConfig};
use crate::connections::{Connection, Kind, Refused};
use crate::protocol::grpc::{self, Services};
use crate::protocol::{http, resp};
use crate::server::Server;
use crate::stream::Stream;
use crate::tls::Tls;

/// How long the first request may wait for the engine to be at work.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// The routes of each kind of HTTP connection.
#[derive(Clone)]
struct Routers {
    all: Router,
    admin: Router,
    reserved: Router,
    services: Services,
}

/// A server that listens.
#[derive(Debug)]
pub struct Running {
    /// Its shared parts.
    pub server: Arc<Server>,
    services: Services,
    control_plane: Option<ControlPlane>,
    listeners: Vec<(Protocol, Listener, Address)>,
    workers: Workers<Protocol>,
    /// What it needs besides: accepting, reloading. None ends by itself.
    tasks: JoinSet<()>,
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
        Self::start_on(config, clock, HandedOver::default())
    }

    /// As [`Running::start`], on sockets that listen already where there are such.
    ///
    /// # Errors
    /// As there.
    pub fn start_on(
        config: &Config,
        clock: Arc<dyn Clock>,
        mut handed: HandedOver,
    ) -> Result<Self, StartError> {
        if let Some(why) = config.server.exposed() {
            return Err(StartError(why));
        }
        let tls = config.server.tls.as_ref().map(Tls::load).transpose();
        let tls = tls.map_err(|why| StartError(format!("[server.tls] {why}")))?;
        let server =
            Server::new(config, tls, clock).map_err(|error| StartError(error.to_string()))?;
        let mut listeners = Vec::new();
        for protocol in Protocol::ALL {
            let address = config.server.address(protocol);
            let (opened, name) = match (handed.take(protocol), address) {
                (Some(handed), _) => {
                    (Listener::take_over(handed), "the socket handed over".to_owned())
                }
                (None, Some(address)) => {
                    (Listener::open(address, config.server.socket_mode), address.to_string())
                }
                (None, None) => continue,
            };
            let failed = |error: io::Error| StartError(format!("can't listen on {name}: {error}"));
            let listener = opened.map_err(failed)?;
            let address = listener.address().map_err(failed)?;
            listeners.push((protocol, listener, address));
        }
        let services = grpc::services();
        let workers = start_workers(&server, &services)
            .map_err(|error| StartError(format!("can't start a thread: {error}")))?;
        let control_plane = config.envoy.control_plane.clone();
        let tasks = JoinSet::new();
        Ok(Self { server, services, control_plane, listeners, workers, tasks })
    }

    /// Where a protocol is served; `None` for nowhere.
    pub fn address(&self, protocol: Protocol) -> Option<&Address> {
        let (.., address) = self.listeners.iter().find(|(known, ..)| *known == protocol)?;
        Some(address)
    }

    /// Serves until SIGTERM or SIGINT; reloads the file on SIGHUP and when it changes.
    ///
    /// # Errors
    /// As [`Running::until`].
    pub async fn until_signal(
        mut self,
        signals: Signals,
        source: Option<ConfigSource>,
    ) -> Result<(), Ended> {
        let Signals { mut terminate, mut interrupt, hangup } = signals;
        self.tasks.spawn(reload_forever(Arc::clone(&self.server), source, hangup));
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
                _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
            }
        };
        self.until(stop).await
    }

    /// Serves until `stop`, then answers what is under way.
    ///
    /// # Errors
    /// When a task or a thread that it needs has ended; what was under way is answered then, too.
    pub async fn until(self, stop: impl Future<Output = ()>) -> Result<(), Ended> {
        let Self { server, services, control_plane, listeners, workers, mut tasks, .. } = self;
        if let Some(plane) = control_plane {
            tasks.spawn(xds::follow(Arc::clone(&server), plane));
        }
        services.announce_start().await;
        server.service.engine().ready(ENGINE_PATIENCE).await;
        let mut ticking = JoinSet::new();
        ticking.spawn(tick_forever(Arc::clone(&server)));
        tasks.spawn(reload_certificates_forever(Arc::clone(&server)));
        let workers = Arc::new(workers);
        for (protocol, listener, _) in listeners {
            // Whoever asks how it is may do so to the last.
            let until = if protocol == Protocol::Admin { &mut ticking } else { &mut tasks };
            until.spawn(accept_all(protocol, listener, Arc::clone(&server), Arc::clone(&workers)));
        }
        let result = tokio::select! {
            () = stop => Ok(()),
            Some(_) = tasks.join_next() => Err(Ended),
            Some(_) = ticking.join_next() => Err(Ended),
            () = workers.ended() => Err(Ended),
        };
        if result.is_err() {
            tracing::error!("{Ended}: stopping");
        }
        server.announce_stop();
        services.announce_stop().await;
        sleep(Duration::from_secs(server.config.shutdown_delay.into())).await;
        // Awaited, so that the listeners are closed.
        tasks.shutdown().await;
        server.connections.stop();
        let patience = Duration::from_secs(server.config.shutdown_timeout.into());
        if timeout(patience, server.connections.gone()).await.is_err() {
            tracing::warn!(connections = server.connections.len(), "still open; closing them");
        }
        tracing::info!(decisions = server.service.metrics.outcomes.total(), "stopped");
        result
    }
}

/// A task or a thread that a server can't be without has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part that the server needs has ended unasked")
    }
}

impl std::error::Error for Ended {}

fn start_workers(server: &Arc<Server>, services: &Services) -> io::Result<Workers<Protocol>> {
    let cores = || std::thread::available_parallelism().map_or(1, Into::into);
    let threads = server.config.threads.unwrap_or_else(cores);
    let routers = Routers {
        all: http::router(Arc::clone(server)),
        admin: http::admin_router(Arc::clone(server)),
        reserved: http::reserved_router(Arc::clone(server)),
        services: services.clone(),
    };
    let server = Arc::clone(server);
    Workers::start(threads, move |protocol, stream, connection| {
        serve_one(protocol, stream, connection, Arc::clone(&server), routers.clone())
    })
}

async fn serve_one(
    protocol: Protocol,
    stream: Stream,
    connection: Connection,
    server: Arc<Server>,
    routers: Routers,
) {
    let stream = match (stream, &server.tls) {
        (Stream::Tcp(stream), Some(tls)) if tls.covers(protocol) => {
            // Boxed, so that it takes no room in connections without.
            match Box::pin(tls.accept(protocol, stream, &connection)).await {
                Ok(stream) => Stream::Tls(Box::new(stream)),
                Err(error) => return tracing::debug!(%error, "no TLS with a client"),
            }
        }
        (stream, _) => stream,
    };
    let router = match (protocol, connection.kind()) {
        (Protocol::Grpc, _) => {
            let serving = grpc::serve::serve(stream, connection, server, routers.services);
            return Box::pin(serving).await;
        }
        (Protocol::Resp, _) => {
            let session = resp::session::Session::new(server, connection.id());
            return resp::serve::serve(stream, connection, session).await;
        }
        (Protocol::Admin, _) => routers.admin,
        (Protocol::Http, Kind::Usual) => routers.all,
        (Protocol::Http, Kind::Reserved) => routers.reserved,
    };
    // Boxed, so that the larger of the two does not set the size of both.
    Box::pin(http::serve::serve(stream, connection, server, router)).await;
}

async fn accept_all(
    protocol: Protocol,
    listener: Listener,
    server: Arc<Server>,
    workers: Arc<Workers<Protocol>>,
) {
    let metrics = &server.service.metrics;
    let pass_on = |socket, connection| {
        metrics.accepted.increment();
        workers.serve(Accepted { protocol, socket, connection });
    };
    let speaks_tls = server.tls.as_ref().is_some_and(|tls| tls.covers(protocol));
    let refuse = |socket: &Socket, refused| {
        metrics.refused.increment();
        // What is not encrypted is no answer to who speaks TLS.
        if !speaks_tls || matches!(socket, Socket::Unix(_)) {
            say_refused(protocol, socket, refused);
        }
    };
    let admit = |address| match protocol {
        Protocol::Resp | Protocol::Grpc => server.connections.admit(address),
        Protocol::Admin => server.admin_connections.admit(address),
        Protocol::Http => server
            .connections
            .admit(address)
            .or_else(|refused| server.connections.admit_reserved(address).ok_or(refused)),
    };
    accept(listener, admit, pass_on, refuse).await;
}

/// Tells a client why it is not served, if that takes no waiting.
fn say_refused(protocol: Protocol, socket: &Socket, refused: Refused) {
    let line = match (protocol, refused) {
        (Protocol::Resp, Refused::Full) => "-ERR max number of clients reached\r\n",
        (Protocol::Resp, Refused::AddressFull) => "-ERR too many connections from this address\r\n",
        (Protocol::Resp, Refused::Stopping) => "-ERR the server is stopping\r\n",
        // A client that speaks HTTP/2 tries again when the connection is closed.
        (Protocol::Grpc, _) => return,
        (Protocol::Http | Protocol::Admin, _) => {
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        }
    };
    socket.send(line.as_bytes());
}

/// Once a second, the deadlines of connections are looked at.
async fn tick_forever(server: Arc<Server>) {
    let mut seconds = each_second();
    loop {
        seconds.tick().await;
        server.connections.tick();
        server.admin_connections.tick();
    }
}

fn each_second() -> Interval {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds
}

/// Reloads on SIGHUP and when the file has changed.
async fn reload_forever(server: Arc<Server>, source: Option<ConfigSource>, mut hangup: Signal) {
    let Some(source) = source else {
        loop {
            if hangup.recv().await.is_none() {
                return pending().await;
            }
            tracing::warn!("SIGHUP: there is no configuration file to reload");
        }
    };
    let mut seconds = each_second();
    let mut stamps = Stamps::new(&all_files(&source.paths));
    loop {
        tokio::select! {
            Some(()) = hangup.recv() => stamps = Stamps::new(&all_files(&source.paths)),
            _ = seconds.tick() => {
                if !stamps.have_changed(&all_files(&source.paths)) {
                    continue;
                }
            }
        }
        reload(&server, (source.load)());
    }
}

/// The files of these paths: of folders, those inside.
fn all_files(paths: &[PathBuf]) -> Vec<PathBuf> {
    let inside = |path: &PathBuf| files(std::slice::from_ref(path)).unwrap_or_default();
    paths.iter().flat_map(inside).collect()
}

/// Exchanges certificates when their files have changed.
async fn reload_certificates_forever(server: Arc<Server>) {
    let Some(tls) = &server.tls else { return pending().await };
    let files = tls.files();
    let mut stamps = Stamps::new(&files);
    let mut seconds = each_second();
    loop {
        seconds.tick().await;
        if !stamps.have_changed(&files) {
            continue;
        }
        match tls.reload() {
            Ok(()) => tracing::info!("certificates reloaded"),
            Err(error) => {
                tracing::error!(%error, "certificates not reloaded; those before stay in force");
            }
        }
    }
}

fn reload(server: &Server, config: Result<Config, ConfigError>) {
    if let Ok(config) = &config {
        // Tokens are exchanged; the rest is not.
        let tokens = server.config.tokens.clone();
        if (ServerConfig { tokens, ..config.server.clone() }) != server.config {
            tracing::warn!("[server] has changed; that takes effect at the next start only");
        }
    }
    match server.reload(config.map_err(|error| error.to_string())) {
        Ok(()) => tracing::info!(rules = server.service.rules().len(), "reloaded"),
        Err(error) => tracing::error!(%error, "not reloaded; the rules before stay in force"),
    }
}
