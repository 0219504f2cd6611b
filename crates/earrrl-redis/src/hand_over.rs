//! What was counted here while Redis was gone is added to its records, each client's once.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::ledger::{ClientId, Contribution};
use crate::link::{Fault, Link};
use crate::near::exchange;
use crate::settle::settle;
use crate::shared::Shared;
use crate::status::count;

/// Clients handed over at a time.
const AT_ONCE: usize = 64;
/// How long an answer is waited for before the rest is kept for the next time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Hands over what a group's clients are owed, until Redis fails: the rest is kept for the next time.
/// It goes on where its caller does not wait: what is under way is in nobody else's hands.
pub(crate) async fn hand_over(
    shared: &Arc<Shared>,
    link: &Link,
    group: usize,
) -> Result<(), Fault> {
    if shared.ledger.owed() == 0 && shared.unsettled.is_empty(group) {
        return Ok(());
    }
    let (shared, link) = (shared.clone(), link.clone());
    let stopped = |_| Fault::Lost("a task was stopped".to_owned());
    tokio::spawn(async move { hand_over_all(&shared, &link, group).await })
        .await
        .map_err(stopped)?
}

async fn hand_over_all(shared: &Arc<Shared>, link: &Link, group: usize) -> Result<(), Fault> {
    settle(shared, link, group).await?;
    let entries = shared.ledger.drain(group, || shared.near.number());
    let (clients, mut tasks, mut went) = (entries.len(), JoinSet::new(), Went::default());
    for (client, entry) in entries {
        if tasks.len() >= AT_ONCE {
            went.note(tasks.join_next().await);
        }
        if went.failed.is_some() {
            shared.ledger.put_back(client, entry);
        } else {
            tasks.spawn(hand_over_one(shared.clone(), link.clone(), client, entry));
        }
    }
    while !tasks.is_empty() {
        went.note(tasks.join_next().await);
    }
    match went.failed.as_ref().or(went.unusable.as_ref()) {
        None if clients == 0 => {}
        None => tracing::debug!(clients, group, "what was counted here is handed over"),
        Some(fault) => {
            let why = fault.detail();
            tracing::warn!(clients, group, why, "not everything could be handed over");
        }
    }
    went.failed.map_or(Ok(()), Err)
}

/// What has gone wrong so far.
#[derive(Default)]
struct Went {
    /// With Redis.
    failed: Option<Fault>,
    /// With a client's record alone.
    unusable: Option<Fault>,
}

impl Went {
    fn note(&mut self, task: Option<Result<Result<(), Fault>, JoinError>>) {
        match task {
            Some(Ok(Err(fault @ Fault::Record(_)))) => self.unusable = Some(fault),
            Some(Ok(Err(fault))) => self.failed = Some(fault),
            _ => {}
        }
    }
}

/// What may have arrived is sent again, under its number: it counts once.
async fn hand_over_one(
    shared: Arc<Shared>,
    link: Link,
    client: ClientId,
    entry: Contribution,
) -> Result<(), Fault> {
    let rule = shared.rules.get(client.rule).filter(|rule| rule.tag == entry.tag);
    let (Some(rule), Some(state)) = (rule, &entry.state) else {
        count(&shared.counters.not_handed_over);
        shared.ledger.done(&client);
        return Ok(());
    };
    let charge = earrrl::Charge { rule: rule.id, key: &client.key, cost: earrrl::Cost::ZERO };
    let asked = shared.asked(rule, &charge, 0);
    let call = exchange::add(&shared, link, &asked, entry.number, state, entry.sum);
    match timeout(PATIENCE, call).await.unwrap_or(Err(Fault::Late)) {
        Ok(()) => {
            count(&shared.counters.handed_over);
            shared.ledger.done(&client);
            Ok(())
        }
        Err(fault @ Fault::Record(_)) => {
            count(&shared.counters.not_handed_over);
            shared.ledger.done(&client);
            Err(fault)
        }
        Err(fault) => {
            shared.ledger.put_back(client, entry);
            Err(fault)
        }
    }
}
