//! The life of a server: it opens listeners, serves, reloads and stops.

use std::fmt;
use std::future::{pending, ready};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use earrrl::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::accept::Listener;
use super::accept::{self, refusal};
use super::allocator::give_back_free_memory;
use super::dial;
use super::handover::{self, HandedOver};
use super::reload::each_second;
use super::reload::{ConfigSource, reload_certificates_forever, reload_forever};
use super::workers::{Serving, Workers};
use crate::config::Config;
use crate::config::envoy::ControlPlane;
use crate::config::listen::{ListenAddress, Protocol};
use crate::connections::{Connection, PlaceKind};
use crate::engine::{Memory, why_not_prepared};
use crate::protocol::grpc::{self, Services};
use crate::protocol::{http, resp};
use crate::server::Server;
use crate::stream::Stream;
use crate::tls::Tls;

/// The longest time that the start waits for the engine to be ready.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);
/// The longest time that the end of the server waits until the engine has stored all counts.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The HTTP routes of each kind of listener.
#[derive(Clone, Debug)]
struct Routers {
    all: Router,
    admin: Router,
    reserved: Router,
    services: Services,
}

/// A server whose listeners are open.
#[derive(Debug)]
pub struct Running {
    /// The state that all connections of the server share.
    pub server: Arc<Server>,
    routers: Routers,
    control_plane: Option<ControlPlane>,
    listeners: Vec<(Protocol, Listener, ListenAddress)>,
    workers: Workers,
    /// The other tasks of the server, such as accepting and reloading. None of them ends by itself.
    tasks: JoinSet<()>,
}

/// Catches SIGHUP from now on. This must be called before the configuration is read, so that no
/// signal for a reload is lost.
///
/// # Errors
/// Returns the system's error if the signal cannot be caught.
pub fn catch_hangup() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// The signals that a server handles. They are caught from their creation on, so they are created
/// before the server reports that it is ready.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Catches the signals for stopping, in addition to SIGHUP, which is already caught by
    /// `hangup`.
    ///
    /// # Errors
    /// Returns the system's error if the signals cannot be caught.
    pub fn catch(hangup: Signal) -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self {
            terminate,
            interrupt: signal(SignalKind::interrupt())?,
            hangup,
        })
    }
}

impl Running {
    /// Opens the listeners and starts the threads. Connections are accepted once
    /// [`Running::until_signal`] or [`Running::until`] is called.
    ///
    /// # Errors
    /// Returns an error if the server cannot listen on an address, or if the address may not be
    /// served without a token.
    pub fn start(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, String> {
        Self::start_on(config, clock, HandedOver::default())
    }

    /// Starts the server like [`Running::start`], but uses the listeners that systemd passed, if
    /// there are any.
    ///
    /// # Errors
    /// Returns the errors of [`Running::start`].
    pub fn start_on(
        config: &Config,
        clock: Arc<dyn Clock>,
        mut handed: HandedOver,
    ) -> Result<Self, String> {
        if let Some(why) = config.server.exposed() {
            return Err(why);
        }
        let tls = config.server.tls.as_ref().map(Tls::load).transpose();
        let tls = tls.map_err(|why| format!("[server.tls] {why}"))?;
        let server = Server::new(config, tls, clock).map_err(why_not_prepared)?;
        let mut listeners = Vec::new();
        for protocol in Protocol::ALL {
            let address = config.server.address(protocol);
            let (opened, name) = match (handed.take(protocol), address) {
                (Some(handed), _) => (
                    Listener::take_over(handed),
                    "the socket handed over".to_owned(),
                ),
                (None, Some(address)) => (
                    Listener::open(address, config.server.socket_mode),
                    address.to_string(),
                ),
                (None, None) => continue,
            };
            let failed = |error: io::Error| {
                let listener = protocol.name();
                let hint = match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        format!("; `--{listener} off` if no client needs it, or another address")
                    }
                    _ => String::new(),
                };
                format!("{listener}: can't listen on {name}: {error}{hint}")
            };
            let listener = opened.map_err(failed)?;
            let address = listener.address().map_err(failed)?;
            listeners.push((protocol, listener, address));
        }
        if listeners.is_empty() {
            return Err(Config::NO_LISTENER.to_owned());
        }
        let cores = || std::thread::available_parallelism().map_or(1, Into::into);
        let workers = Workers::start(server.config.threads.unwrap_or_else(cores))
            .map_err(|error| format!("can't start a thread: {error}"))?;
        let routers = Routers::new(&server);
        let control_plane = config.envoy.control_plane.clone();
        let tasks = JoinSet::new();
        Ok(Self {
            server,
            routers,
            control_plane,
            listeners,
            workers,
            tasks,
        })
    }

    /// Returns the address at which a protocol is served; `None` if it is not served.
    pub fn address(&self, protocol: Protocol) -> Option<&ListenAddress> {
        let (.., address) = self
            .listeners
            .iter()
            .find(|(known, ..)| *known == protocol)?;
        Some(address)
    }

    /// Serves until SIGTERM or SIGINT. Reloads the configuration on SIGHUP and when its file
    /// changes.
    ///
    /// # Errors
    /// Returns the errors of [`Running::until`].
    pub async fn until_signal(
        mut self,
        signals: Signals,
        source: Option<ConfigSource>,
    ) -> Result<(), Ended> {
        let Signals {
            mut terminate,
            mut interrupt,
            hangup,
        } = signals;
        self.tasks
            .spawn(reload_forever(Arc::clone(&self.server), source, hangup));
        self.until_asked(async || {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
                _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
            }
        })
        .await
    }

    /// Serves until `stop` completes, then finishes the requests in flight.
    ///
    /// # Errors
    /// Returns an error if a task or a thread that the server needs has ended; the requests in
    /// flight are finished in this case too.
    pub async fn until(self, stop: impl Future<Output = ()>) -> Result<(), Ended> {
        let mut stop = Some(stop);
        self.until_asked(async || match stop.take() {
            Some(stop) => stop.await,
            None => pending().await,
        })
        .await
    }

    /// Serves until `asked` returns, then stops like [`Running::until`]. If it returns again, the
    /// server does not wait any longer for requests in flight.
    async fn until_asked(self, mut asked: impl AsyncFnMut()) -> Result<(), Ended> {
        let Self {
            server,
            routers,
            control_plane,
            listeners,
            workers,
            mut tasks,
            ..
        } = self;
        if let Some(plane) = control_plane {
            tasks.spawn(dial::follow(Arc::clone(&server), plane));
        }
        tasks.spawn(announce_readiness(
            Arc::clone(&server),
            routers.services.clone(),
        ));
        if let Some(redis) = server.service.engine().redis() {
            redis.ready(ENGINE_PATIENCE).await;
            server.service.refresh_overrides().await;
        }
        let mut ticking = JoinSet::new();
        ticking.spawn(tick_forever(Arc::clone(&server)));
        ticking.spawn(refresh_overrides_forever(Arc::clone(&server)));
        tasks.spawn(reload_certificates_forever(Arc::clone(&server)));
        let workers = Arc::new(workers);
        for (protocol, listener, _) in listeners {
            // The listener for health checks is kept until the end of the shutdown.
            let until = if protocol == Protocol::Admin {
                &mut ticking
            } else {
                &mut tasks
            };
            until.spawn(accept_all(
                protocol,
                listener,
                Arc::clone(&server),
                routers.clone(),
                Arc::clone(&workers),
            ));
        }
        handover::ready();
        let result = tokio::select! {
            () = asked() => Ok(()),
            Some(_) = tasks.join_next() => Err(Ended),
            Some(_) = ticking.join_next() => Err(Ended),
            () = workers.ended() => Err(Ended),
        };
        if result.is_err() {
            tracing::error!("{Ended}: stopping");
        }
        tokio::select! {
            () = leave(&server, &routers.services, &mut tasks) => {}
            () = asked() => tracing::info!("asked again: closing all connections"),
        }
        let metrics = &server.service.metrics;
        let decisions = metrics.outcomes.total() + metrics.throttle.total();
        tracing::info!(decisions, "stopped");
        result
    }
}

/// Stops accepting, and waits until all connections are closed or the shutdown timeout has passed.
/// Then sends the counts that the engine has not stored yet.
async fn leave(server: &Server, services: &Services, tasks: &mut JoinSet<()>) {
    handover::stopping();
    server.announce_stop();
    services.announce_stop().await;
    sleep(Duration::from_secs(server.config.shutdown_delay.into())).await;
    // The shutdown of the tasks is awaited, so that the listeners are closed afterwards.
    tasks.shutdown().await;
    server.connections.stop();
    let patience = Duration::from_secs(server.config.shutdown_timeout.into());
    if timeout(patience, server.connections.gone()).await.is_err() {
        tracing::warn!(
            connections = server.connections.len(),
            "still open; closing them"
        );
    }
    if let Some(redis) = server.service.engine().redis() {
        redis.flush(FLUSH_TIMEOUT).await;
    }
}

/// Reports over gRPC health checks that the server is ready, once it has its configuration.
async fn announce_readiness(server: Arc<Server>, services: Services) {
    server.configured().await;
    services.announce_start().await;
    // This task must not end, since the server treats the end of a task as a fault.
    pending().await
}

/// The error that a task or a thread that the server needs has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part that the server needs has ended unasked")
    }
}

impl Routers {
    fn new(server: &Arc<Server>) -> Self {
        Self {
            all: http::router(Arc::clone(server)),
            admin: http::admin_router(Arc::clone(server)),
            reserved: http::reserved_router(Arc::clone(server)),
            services: grpc::services(),
        }
    }
}

async fn serve_one(
    protocol: Protocol,
    stream: Stream,
    connection: Connection,
    server: Arc<Server>,
    routers: Routers,
) {
    // The future is boxed, so that an open connection reserves no space for its beginning.
    let opening = Box::pin(open(protocol, stream, connection, Arc::clone(&server)));
    let Some((stream, connection, peer)) = opening.await else {
        return;
    };
    let (router, asks) = match (protocol, connection.kind()) {
        (Protocol::Grpc, _) => {
            let serving = grpc::serve::serve(stream, connection, server, routers.services);
            return Box::pin(serving).await;
        }
        (Protocol::Resp, _) => {
            // An open connection needs no space for what the other protocols use.
            drop(routers);
            let session = resp::session::Session::new(server, connection.id());
            return resp::serve::serve(stream, connection, session).await;
        }
        (Protocol::Admin, _) => (routers.admin, false),
        (Protocol::Http, PlaceKind::Usual) => (routers.all, true),
        (Protocol::Http, PlaceKind::Reserved) => (routers.reserved, false),
    };
    // The future is boxed, so that a connection of either protocol does not reserve the size of the
    // larger one.
    Box::pin(http::serve::serve(
        stream, peer, connection, server, router, asks,
    ))
    .await;
}

/// Reads the head that a load balancer sends first and performs the TLS handshake, as far as the
/// protocol's listener has either. Returns the stream, the connection, and the address of the
/// client's connection; `None` if one of them fails.
async fn open(
    protocol: Protocol,
    mut stream: Stream,
    mut connection: Connection,
    server: Arc<Server>,
) -> Option<(Stream, Connection, Option<IpAddr>)> {
    let mut peer = stream.peer();
    if server.config.proxy_protocol.contains(&protocol) {
        let head = accept::receive(protocol, &mut stream, &mut connection, &server).await;
        peer = Some(head?);
    }
    let stream = match (stream, &server.tls) {
        (Stream::Tcp(stream), Some(tls)) if tls.covers(protocol) => {
            match tls.accept(protocol, stream, &connection).await {
                Ok(stream) => Stream::Tls(Box::new(stream)),
                Err(error) => {
                    tracing::debug!(%error, "no TLS with a client");
                    return None;
                }
            }
        }
        (stream, _) => stream,
    };
    Some((stream, connection, peer))
}

async fn accept_all(
    protocol: Protocol,
    listener: Listener,
    server: Arc<Server>,
    routers: Routers,
    workers: Arc<Workers>,
) {
    let metrics = &server.service.metrics;
    let speaks_tls = server.tls.as_ref().is_some_and(|tls| tls.covers(protocol));
    loop {
        let (socket, address) = accept::next(&listener).await;
        let admitted = match protocol {
            Protocol::Resp | Protocol::Grpc => server.connections.admit(address),
            Protocol::Admin => server.admin_connections.admit(address),
            Protocol::Http => server
                .connections
                .admit(address)
                .or_else(|refused| server.connections.admit_reserved(address).ok_or(refused)),
        };
        let connection = match admitted {
            Ok(connection) => connection,
            Err(refused) => {
                metrics.refused.increment();
                // A client that uses TLS could not read an unencrypted reply.
                if !speaks_tls || socket.is_unix {
                    socket.send(refusal(protocol, refused).as_bytes());
                }
                continue;
            }
        };
        metrics.accepted.increment();
        let server = Arc::clone(&server);
        let routers = routers.clone();
        workers.serve(Box::new(move || -> Serving {
            match socket.into_stream() {
                Ok(stream) => Box::pin(serve_one(protocol, stream, connection, server, routers)),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be registered");
                    Box::pin(ready(()))
                }
            }
        }));
    }
}

/// Keeps the overrides that are set at run time those of all servers, until the server ends.
async fn refresh_overrides_forever(server: Arc<Server>) {
    let mut seconds = each_second();
    loop {
        seconds.tick().await;
        server.service.refresh_overrides().await;
    }
}

/// The number of seconds between two checks for replaced tables that can be freed.
const TIDY_EVERY: u32 = 60;

/// Checks the deadlines of connections once a second, until the server ends.
async fn tick_forever(server: Arc<Server>) {
    let mut seconds = each_second();
    let mut seconds_to_tidy = TIDY_EVERY;
    loop {
        seconds.tick().await;
        server.connections.tick();
        server.admin_connections.tick();
        server.service.engine().expire_reservations();
        if server.connections.memory_has_fallen() {
            drop(tokio::task::spawn_blocking(give_back_free_memory));
        }
        seconds_to_tidy = seconds_to_tidy.checked_sub(1).unwrap_or(TIDY_EVERY);
        if seconds_to_tidy == 0 {
            let server = Arc::clone(&server);
            drop(tokio::task::spawn_blocking(move || {
                server.service.engine().memory().map(Memory::tidy)
            }));
        }
    }
}
