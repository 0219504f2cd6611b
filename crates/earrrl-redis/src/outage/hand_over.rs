//! Delivery of pending changes to Redis after an outage. Each change is applied once.

use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};

use crate::calls::deliver::deliver_one;
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::outage::settle::settle;
use crate::shared::Shared;

/// The most deliveries in flight.
const MAX_IN_FLIGHT: usize = 64;

/// Settles a group's calls and delivers its pending charges until Redis fails; the rest is kept for
/// the next attempt. It runs in a task of its own, which completes even if the caller is cancelled:
/// only this task knows the entries in flight.
pub(crate) async fn hand_over(
    shared: &Arc<Shared>,
    link: &Link,
    group: usize,
) -> Result<(), Fault> {
    if shared.backlog.ledger.len() == 0 && shared.backlog.unsettled.is_empty(group) {
        return Ok(());
    }
    let shared = shared.clone();
    let link = link.clone();
    let stopped = |_| Fault::Lost("a task was stopped".to_owned());
    tokio::spawn(async move { hand_over_all(&shared, &link, group).await })
        .await
        .map_err(stopped)?
}

async fn hand_over_all(shared: &Arc<Shared>, link: &Link, group: usize) -> Result<(), Fault> {
    settle(shared, link, group).await?;
    let entries = shared.backlog.ledger.drain(group, || shared.node.number());
    let clients = entries.len();
    let mut tasks = JoinSet::new();
    let mut failures = Failures::default();
    for (client, entry) in entries {
        if tasks.len() >= MAX_IN_FLIGHT {
            failures.note(tasks.join_next().await);
        }
        if failures.failed.is_some() {
            shared.backlog.ledger.put_back(client, entry);
        } else {
            tasks.spawn(deliver_one(shared.clone(), link.clone(), client, entry));
        }
    }
    while !tasks.is_empty() {
        failures.note(tasks.join_next().await);
    }
    match failures.failed.as_ref().or(failures.unusable.as_ref()) {
        None if clients == 0 => {}
        None => tracing::debug!(clients, group, "what was counted here is handed over"),
        Some(fault) => {
            let why = fault.detail();
            tracing::warn!(clients, group, why, "not everything could be handed over");
        }
    }
    failures.failed.map_or(Ok(()), Err)
}

/// The failures of a delivery so far.
#[derive(Default)]
struct Failures {
    /// A failure of Redis, which ends the delivery.
    failed: Option<Fault>,
    /// A failure of a single client's record.
    unusable: Option<Fault>,
}

impl Failures {
    fn note(&mut self, task: Option<Result<Result<(), Fault>, JoinError>>) {
        match task {
            Some(Ok(Err(fault @ Fault::Record(_)))) => self.unusable = Some(fault),
            Some(Ok(Err(fault))) => self.failed = Some(fault),
            _ => {}
        }
    }
}
