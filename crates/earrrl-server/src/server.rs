//! The state that all connections of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use arc_swap::ArcSwap;
use earrrl::internal::lock;
use earrrl::{Clock, EngineError};
use tokio::sync::{Semaphore, SetOnce};

use crate::config::access::Tokens;
use crate::config::envoy::tree::Tree;
use crate::config::server::Limits;
use crate::config::{Config, ServerConfig};
use crate::connections::Connections;
use crate::engine::redis::Redis;
use crate::log;
use crate::metrics::Family;
use crate::service::Service;
use crate::service::names::ENVOY;
use crate::tls::Tls;

/// The largest number of connections to the listener for health checks and metrics.
const ADMIN_CONNECTIONS: usize = 64;

/// The largest number of streams of events that are open at the same time.
const WATCHERS: usize = 16;

/// The state that all connections of a server share.
#[derive(Debug)]
pub struct Server {
    /// The service that decides requests by the rules.
    pub service: Arc<Service>,
    /// The open connections of all listeners but the one for health checks and metrics.
    pub connections: Arc<Connections>,
    /// The open connections of the listener for health checks and metrics.
    pub admin_connections: Arc<Connections>,
    /// The addresses, limits and tokens with which the server was started. A reload replaces the
    /// rules and `tokens`, but not these settings.
    pub config: ServerConfig,
    /// The TLS certificates; `None` if no listener uses TLS.
    pub tls: Option<Tls>,
    /// True if the `Host` of a request must be this machine. This is required when every client
    /// that can connect is trusted, so that web pages cannot use a browser as such a client.
    pub guards_host: bool,
    /// The places for streams of events.
    pub watchers: Arc<Semaphore>,
    tokens: ArcSwap<Tokens>,
    started: Instant,
    stopping: AtomicBool,
    /// Set once the rules and descriptors of all sources are in force.
    configured: SetOnce<()>,
    reload_error: Mutex<Option<String>>,
}

impl Server {
    /// Creates a server in which the rules of `config` are in force. It does not listen yet.
    ///
    /// # Errors
    /// Returns an error if the rules cannot be prepared, for example because memory runs short.
    pub fn new(
        config: &Config,
        tls: Option<Tls>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, EngineError> {
        // Browsers cannot connect to Unix sockets.
        let listeners = [&config.server.http, &config.server.admin];
        let over_tcp = listeners
            .into_iter()
            .flatten()
            .any(|address| address.tcp().is_some());
        Ok(Arc::new(Self {
            service: Arc::new(Service::new(config, clock)?),
            connections: Connections::new(config.server.limits),
            admin_connections: Connections::new(Limits {
                connections: ADMIN_CONNECTIONS,
                connections_by_address: ADMIN_CONNECTIONS,
                ..config.server.limits
            }),
            config: config.server.clone(),
            guards_host: !config.server.tokens.any() && over_tcp,
            tls,
            watchers: Arc::new(Semaphore::new(WATCHERS)),
            tokens: ArcSwap::from_pointee(config.server.tokens.clone()),
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            configured: SetOnce::new_with(config.envoy.control_plane.is_none().then_some(())),
            reload_error: Mutex::default(),
        }))
    }

    /// Replaces the rules by those of another configuration. If that fails, the current rules stay
    /// in force, and the reason is stored.
    ///
    /// # Errors
    /// Returns the reason why the reload was refused, which `/readyz` reports until a reload
    /// succeeds.
    pub fn reload(&self, config: Result<Config, String>) -> Result<(), String> {
        let result = config.and_then(|config| self.apply(config));
        self.count_reload(&result);
        *self.last_refusal() = result.clone().err();
        result
    }

    /// Retries a reload that [`Server::reload`] refused. A refusal for the same reason as before is
    /// not counted again, and the result is `None`.
    pub fn reload_again(&self, config: Result<Config, String>) -> Option<Result<(), String>> {
        let result = config.and_then(|config| self.apply(config));
        let before = std::mem::replace(&mut *self.last_refusal(), result.clone().err());
        if result.is_err() && result.as_ref().err() == before.as_ref() {
            return None;
        }
        self.count_reload(&result);
        Some(result)
    }

    fn count_reload(&self, result: &Result<(), String>) {
        let metrics = &self.service.metrics;
        let counter = if result.is_ok() {
            &metrics.reloads
        } else {
            &metrics.failed_reloads
        };
        counter.increment();
    }

    fn last_refusal(&self) -> MutexGuard<'_, Option<String>> {
        lock(&self.reload_error)
    }

    fn apply(&self, config: Config) -> Result<(), String> {
        let tokens = config.server.tokens.clone();
        if tokens.any() != self.tokens().any() {
            return Err("[server] has tokens now, or none any more; that needs a restart".into());
        }
        self.service
            .reload(&config, || self.tokens.store(Arc::new(tokens)))
    }

    /// Returns the tokens in force, which determine the access of each client.
    pub fn tokens(&self) -> arc_swap::Guard<Arc<Tokens>> {
        self.tokens.load()
    }

    /// Replaces the descriptors in force. If that fails, the current descriptors stay in force.
    ///
    /// # Errors
    /// Returns the reason why they were refused.
    pub fn reload_descriptors(&self, tree: Result<Tree, String>) -> Result<(), String> {
        let result = tree.and_then(|tree| self.service.reload_descriptors(tree));
        self.count_reload(&result);
        if result.is_ok() {
            // This fails if it is set already.
            let _ = self.configured.set(());
        }
        result
    }

    /// Returns true once the server has its whole configuration. Before a control plane has sent
    /// the first descriptors, no call could be answered.
    pub fn is_configured(&self) -> bool {
        self.configured.initialized()
    }

    /// Waits until the server has its whole configuration.
    pub async fn configured(&self) {
        self.configured.wait().await;
    }

    /// Returns the reason why the last reload was refused; `None` if it succeeded.
    pub fn reload_error(&self) -> Option<String> {
        self.last_refusal().clone()
    }

    /// Makes `/readyz` report from now on that the server is stopping.
    pub fn announce_stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Returns true if the server is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Returns the whole seconds since the server was started.
    pub fn uptime(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Returns the metrics in the Prometheus text format.
    pub fn metrics(&self) -> Vec<u8> {
        let failed = f64::from(self.reload_error().is_some());
        let gauge = |name, help, value| Family::gauge(name, help).value(value);
        let mut families = vec![
            gauge(
                "earrrl_connections",
                "Connections.",
                self.connections.len() as f64,
            ),
            gauge(
                "earrrl_reload_failed",
                "1 while the last reload was refused.",
                failed,
            ),
        ];
        let lost = Family::counter("earrrl_log_lines_lost_total", "Log lines not written.");
        families.push(lost.value(log::lines_lost() as f64));
        let unjudged = Family::counter(
            "earrrl_unjudged_total",
            "Proxied requests passed without a verdict.",
        );
        let passed = self
            .service
            .passed_unjudged()
            .map(|(why, count)| (why, count as f64));
        families.push(unjudged.labelled("reason", passed));
        families.extend(self.table_gauges());
        families.extend(
            self.service
                .engine()
                .redis()
                .into_iter()
                .flat_map(Redis::metrics),
        );
        families.extend(self.service.engine().reservation_metrics());
        families.extend(self.service.run_time.metrics());
        let refused = Family::counter(
            "earrrl_request_limits_refused_total",
            "Limits of requests that could not be counted.",
        );
        let counts = self.service.descriptor_counts();
        families.push(refused.value(counts.refused_limits.get() as f64));
        families.extend(self.service.descriptor_metrics());
        families.extend(self.tls.iter().flat_map(Tls::metrics));
        self.service.metrics.render(families)
    }

    /// Returns the usage of the tables: one for each rule, one for `CL.THROTTLE`, and one for all
    /// descriptors with wildcards.
    fn table_gauges(&self) -> [Family; 3] {
        let mut clients = Vec::new();
        let mut capacity = Vec::new();
        let mut displaced = Vec::new();
        let mut add = |name: &str, of: (usize, u64), places: usize| {
            clients.push((name.to_owned(), of.0 as f64));
            displaced.push((name.to_owned(), of.1 as f64));
            capacity.push((name.to_owned(), places as f64));
        };
        let table = self.service.engine().throttle.table();
        add(
            "CL.THROTTLE",
            (table.len(), table.displaced()),
            table.capacity(),
        );
        let memory = self.service.engine().memory();
        for rule in self.service.rules().iter() {
            if let Some(usage) = memory.and_then(|memory| memory.usage(rule.own.id)) {
                add(&rule.name, usage, rule.capacity);
            }
        }
        if let Some((usage, capacity)) = self.service.descriptor_usage() {
            add(ENVOY, usage, capacity);
        }
        let gauge = |name, help, values| Family::gauge(name, help).labelled("rule", values);
        let gone = "Clients that were not idle and had to go.";
        [
            gauge(
                "earrrl_clients",
                "Clients stored, about, idle ones included.",
                clients,
            ),
            gauge(
                "earrrl_clients_capacity",
                "Live clients the table is meant for.",
                capacity,
            ),
            Family::counter("earrrl_clients_displaced_total", gone).labelled("rule", displaced),
        ]
    }
}
