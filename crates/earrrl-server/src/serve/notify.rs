//! Messages to systemd about the state of the server, for units of `Type=notify` and `Type=notify-reload`. Without
//! systemd they go nowhere.

use sd_notify::NotifyState;

/// Reports that the server accepts connections, or has ended a reload.
pub(super) fn ready() {
    send(&[NotifyState::Ready]);
}

/// Reports that a reload begins. systemd compares the time with that of its SIGHUP, so that it does not take the end of an
/// earlier reload for the end of this one.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => {
            tracing::warn!(%error, "systemd learns of no reload: the clock cannot be read")
        }
    }
}

/// Reports that the server is stopping.
pub(super) fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        tracing::warn!(%error, "systemd cannot be told about the state of the server");
    }
}
