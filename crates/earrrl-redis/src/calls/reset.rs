//! Removes a client's records, on this node and in Redis.

use earrrl::Engine as _;

use crate::connection::fault::Fault;
use crate::request::KeyedCharge;
use crate::shared::Shared;

/// Removes all charges of a client under a rule.
pub(crate) async fn reset(shared: &Shared, charge: &KeyedCharge) -> Result<(), Fault> {
    shared
        .local
        .reset(charge.rule.local, &charge.client)
        .await
        .ok();
    shared.backlog.ledger.forget(charge);
    shared.backlog.unsettled.forget(charge);
    if let Some(table) = &charge.rule.near {
        table.forget(&charge.client);
    }
    let mut link = shared.connection.link(charge.group)?;
    let mut command = redis::cmd("DEL");
    command.arg(&charge.key);
    let call = async { link.send(&command).await.map(drop).map_err(Fault::from) };
    shared
        .connection
        .within(shared.options.deadline, charge.group, call)
        .await
}
