//! Deliveries of the pending changes of one client. Each change is applied once, even if it is sent
//! several times.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use earrrl::Nanos;
use tokio::time::timeout;

use crate::backlog::ledger::{ClientId, Delivery};
use crate::calls::contribute::contribute;
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::request::KeyedCharge;
use crate::shared::Shared;
use crate::status::count;

/// The timeout of a delivery. Charges that were not delivered are kept for the next attempt.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Takes back a charge that Redis has stored, exactly once. Waits for that within the deadline;
/// afterwards, the change is delivered in the background. Returns false if the ledger is too full
/// to note the change.
pub(crate) async fn take_back(
    shared: &Arc<Shared>,
    charge: &KeyedCharge,
    charged_at: Option<Nanos>,
    given: Option<Nanos>,
) -> Result<bool, Fault> {
    let Some(entry) = shared
        .backlog
        .ledger
        .take_back_there(charge, charged_at, given, false)
    else {
        count(&shared.connection.counters.not_handed_over);
        return Ok(false);
    };
    let Ok(link) = shared.connection.link(charge.group) else {
        return Ok(true);
    };
    let delivery = deliver(shared, &link, ClientId::of(charge), entry);
    match shared
        .connection
        .within(shared.options.deadline, charge.group, delivery)
        .await
    {
        Err(fault @ Fault::Record(_)) => Err(fault),
        _ => Ok(true),
    }
}

/// Delivers a client's changes until Redis has those of the given entry. Changes that cannot be
/// delivered now are delivered later.
async fn deliver(
    shared: &Arc<Shared>,
    link: &Link,
    client: ClientId,
    entry: u64,
) -> Result<(), Fault> {
    let ledger = &shared.backlog.ledger;
    while ledger.lacks(&client, entry) {
        let mut returned = pin!(ledger.returned(&client));
        returned.as_mut().enable();
        match ledger.drain_client(&client, || shared.node.number()) {
            // Delivered in a task of its own, which completes even if the caller is cancelled: only
            // this task knows the entry in flight.
            Some(delivery) => {
                let one = deliver_one(shared.clone(), link.clone(), client.clone(), delivery);
                let stopped = |_| Err(Fault::Lost("a task was stopped".to_owned()));
                tokio::spawn(one).await.unwrap_or_else(stopped)?;
            }
            None if ledger.lacks(&client, entry) => returned.await,
            None => {}
        }
    }
    Ok(())
}

/// Delivers one client's changes, under the parameters under which they were counted. If they may have
/// arrived, they are sent again under the same number, and so are applied only once.
pub(crate) async fn deliver_one(
    shared: Arc<Shared>,
    link: Link,
    client: ClientId,
    delivery: Delivery,
) -> Result<(), Fault> {
    let rule = delivery.rule.clone();
    let charge = earrrl::Charge {
        rule: rule.id,
        key: &client.key,
        cost: earrrl::Cost::ZERO,
    };
    let charge = shared.keyed(rule, &charge, 0);
    let call = contribute(
        &shared,
        link,
        &charge,
        &delivery.contribution,
        delivery.given,
    );
    let outcome = timeout(TIMEOUT, call).await.unwrap_or(Err(Fault::Late));
    if outcome.is_err() && !delivery.contribution.take_backs.is_empty() {
        count(&shared.connection.counters.take_backs_failed);
    }
    match outcome {
        Ok(()) => {
            count(&shared.connection.counters.handed_over);
            shared.backlog.ledger.done(&client);
            Ok(())
        }
        Err(fault @ Fault::Record(_)) => {
            count(&shared.connection.counters.not_handed_over);
            shared.backlog.ledger.done(&client);
            Err(fault)
        }
        Err(fault) => {
            shared.backlog.ledger.put_back(client, delivery);
            Err(fault)
        }
    }
}
