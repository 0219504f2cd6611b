//! Reloads of the configuration: on SIGHUP, when a file has changed, and again after a refused
//! reload.
//!
//! Files are checked for changes once a second. This detects replaced files, changed symbolic links (as Kubernetes uses)
//! and changes on network file systems, while notifications miss some of these. A change counts once the file has been
//! unchanged for a second, since a file that is being written may be empty for a moment, and a private key may be
//! written a little later than its certificate.

use std::future::pending;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::accept::Again;
use super::handover;
use crate::config::envoy::load::files;
use crate::config::{Config, ConfigError, ServerConfig};
use crate::server::Server;
use crate::tls::Tls;

/// The time after which a reload that has not ended is reported.
const SLOW: Duration = Duration::from_secs(5);

/// The files from which a server's configuration is loaded.
pub struct ConfigSource {
    /// The paths of the files; the path of a folder includes every file in it.
    pub paths: Vec<PathBuf>,
    /// Loads the configuration from the files, and adds the settings of the command line.
    pub load: Box<dyn Fn() -> Result<Config, ConfigError> + Send>,
}

/// Reloads the configuration on SIGHUP and when one of its files has changed, until the server
/// ends.
pub(super) async fn reload_forever(
    server: Arc<Server>,
    source: Option<ConfigSource>,
    mut hangup: Signal,
) {
    let Some(mut source) = source else {
        return warn_forever(hangup).await;
    };
    let mut seconds = each_second();
    let mut again = Again::default();
    let mut stamps = Stamps::new(&all_files(&source.paths));
    loop {
        let asked = tokio::select! {
            Some(()) = hangup.recv() => {
                stamps = Stamps::new(&all_files(&source.paths));
                true
            }
            _ = seconds.tick() => {
                let (changed, due) = (stamps.have_changed(&all_files(&source.paths)), again.is_due());
                if !changed && !due {
                    continue;
                }
                changed
            }
        };
        // Preparing tables and moving clients to them may take long, so it runs on another thread
        // and does not delay new connections.
        handover::reloading();
        let server = Arc::clone(&server);
        let reloading = tokio::task::spawn_blocking(move || {
            let succeeded = reload(&server, (source.load)(), asked);
            (source, succeeded)
        });
        let Ok((back, succeeded)) = ended(reloading).await else {
            return;
        };
        handover::ready();
        source = back;
        again.attempted(succeeded);
    }
}

/// Waits until a reload ends. Logs a warning if that takes long, since no other reload begins until then.
async fn ended<T>(mut reloading: JoinHandle<T>) -> Result<T, JoinError> {
    match timeout(SLOW, &mut reloading).await {
        Ok(ended) => ended,
        Err(_) => {
            let seconds = SLOW.as_secs();
            tracing::warn!(
                "a reload has taken {seconds} s and goes on: a file may be a named pipe, or on a mount that hangs"
            );
            reloading.await
        }
    }
}

/// Logs a warning for each SIGHUP to a server without configuration files.
async fn warn_forever(mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        handover::reloading();
        tracing::warn!("SIGHUP: there is no configuration file to reload");
        handover::ready();
    }
    pending().await
}

/// Returns all files of these paths; for a folder, the files in it.
fn all_files(paths: &[PathBuf]) -> Vec<PathBuf> {
    let inside = |path: &PathBuf| files(std::slice::from_ref(path)).unwrap_or_default();
    paths.iter().flat_map(inside).collect()
}

/// Reloads the configuration, and returns true if that succeeded. If `asked` is false, this is a
/// retry of a refused reload, and the same error is not logged again.
fn reload(server: &Server, config: Result<Config, ConfigError>, asked: bool) -> bool {
    let config = config.map_err(|error| error.to_string());
    let needs_restart = config
        .as_ref()
        .is_ok_and(|config| needs_restart(server, config));
    let limits_nothing = config.as_ref().is_ok_and(Config::limits_nothing);
    let cautions = config.as_ref().map(Config::cautions).unwrap_or_default();
    let reloaded = match asked {
        true => Some(server.reload(config)),
        false => server.reload_again(config),
    };
    let Some(reloaded) = reloaded else {
        return false;
    };
    if needs_restart {
        tracing::warn!("[server] has changed; that takes effect at the next start only");
    }
    match &reloaded {
        Ok(()) => {
            let rules = server.service.rules().len();
            let service = &server.service;
            tracing::info!(rules, descriptors = service.descriptor_limits(), "reloaded");
            if limits_nothing {
                tracing::warn!("{}", Config::LIMITS_NOTHING);
            }
            for caution in cautions {
                tracing::warn!("{caution}");
            }
        }
        Err(error) => {
            tracing::error!(%error, "not reloaded; the rules before stay in force");
        }
    }
    reloaded.is_ok()
}

/// Returns true if a setting of `[server]` has changed that a reload cannot apply. A reload applies
/// only new tokens.
fn needs_restart(server: &Server, config: &Config) -> bool {
    let tokens = server.config.tokens.clone();
    (ServerConfig {
        tokens,
        ..config.server.clone()
    }) != server.config
}

/// Reloads the TLS certificates whenever their files have changed, until the server ends.
pub(super) async fn reload_certificates_forever(server: Arc<Server>) {
    let Some(tls) = &server.tls else {
        return pending().await;
    };
    let files = tls.files();
    let mut stamps = Stamps::new(&files);
    let mut again = Again::default();
    let mut seconds = each_second();
    let mut logged = None;
    loop {
        seconds.tick().await;
        let due = again.is_due();
        let reading = Arc::clone(&server);
        let paths = files.clone();
        // Reading may block for long, for example on a network mount that hangs, so another thread
        // reads while the server continues to accept.
        let read = tokio::task::spawn_blocking(move || {
            let changed = stamps.have_changed(&paths);
            let read = (changed || due).then(|| reading.tls.as_ref().map(Tls::reload));
            (stamps, changed, read.flatten())
        });
        let Ok((back, changed, read)) = read.await else {
            return;
        };
        stamps = back;
        let Some(read) = read else { continue };
        let error = read.err();
        again.attempted(error.is_none());
        match &error {
            None => tracing::info!("certificates reloaded"),
            Some(error) if changed || logged.as_ref() != Some(error) => {
                tracing::error!(%error, "certificates not reloaded; those before stay in force");
            }
            Some(_) => {}
        }
        logged = error;
    }
}

/// The properties of a file that change when the file, or a symbolic link on the way to it, does.
#[derive(Clone, Debug, PartialEq)]
struct Stamp {
    path: PathBuf,
    modified: SystemTime,
    len: u64,
    inode: u64,
}

/// The stamps of a set of files, in the order of the files.
#[derive(Debug)]
struct Stamps {
    /// The stamps of the files when they were last read.
    read: Vec<Option<Stamp>>,
    /// The stamps of the files at the last check.
    seen: Vec<Option<Stamp>>,
}

impl Stamps {
    /// Records the stamps of files that have just been read.
    pub(super) fn new(files: &[PathBuf]) -> Self {
        let read = stamps(files);
        Self {
            seen: read.clone(),
            read,
        }
    }

    /// Returns true if the files differ from those that were read, and have not changed since the
    /// last call. The files are then recorded as read.
    fn have_changed(&mut self, files: &[PathBuf]) -> bool {
        let now = stamps(files);
        let settled = now == self.seen;
        self.seen = now;
        let changed = settled && self.seen != self.read;
        if changed {
            self.read.clone_from(&self.seen);
        }
        changed
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|file| stamp(file)).collect()
}

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(file).ok()?;
    let path = std::fs::canonicalize(file).ok()?;
    let modified = metadata.modified().ok()?;
    Some(Stamp {
        path,
        modified,
        len: metadata.len(),
        inode: metadata.ino(),
    })
}

/// Returns a timer that ticks every second. After a late tick, the next one comes a full second
/// later.
pub(super) fn each_second() -> Interval {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds
}
