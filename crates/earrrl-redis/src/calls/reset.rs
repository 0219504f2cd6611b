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
    shared.with_near(charge, None, |client, _| client.forget());
    let mut link = shared.connection.link(charge.group)?;
    let mut command = redis::cmd("DEL");
    // Nodes with another version of the configuration may use another algorithm, so the keys of all
    // algorithms are deleted.
    let keys = &shared.connection.keys;
    for name in charge.rule.all_keys() {
        let record = keys.record(&charge.client, &name);
        command
            .arg(keys.claims(&record))
            .arg(keys.version(&record))
            .arg(record);
    }
    let call = async { link.send(&command).await.map(drop).map_err(Fault::from) };
    shared
        .connection
        .within(shared.options.deadline, charge.group, call)
        .await
}
