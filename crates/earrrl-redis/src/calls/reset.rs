//! Forgets a client, here and in Redis.

use earrrl::Engine as _;

use crate::connection::fault::Fault;
use crate::request::KeyedCharge;
use crate::shared::Shared;

/// Forgets everything that was charged to a client under a rule.
pub(crate) async fn reset(shared: &Shared, charge: &KeyedCharge) -> Result<(), Fault> {
    shared.local.reset(charge.rule.local, &charge.client).await.ok();
    shared.backlog.ledger.forget(charge);
    shared.backlog.unsettled.forget(charge);
    shared.with_near(charge, None, |client, _| client.forget());
    let mut link = shared.connection.link(charge.group)?;
    let mut command = redis::cmd("DEL");
    // Nodes of other versions of the configuration may use another algorithm.
    for name in charge.rule.all_keys() {
        let record = shared.connection.keys.record(&charge.client, &name);
        command.arg(shared.connection.keys.claims(&record)).arg(record);
    }
    let call = async { link.send(&command).await.map(drop).map_err(Fault::from) };
    shared.connection.within(shared.options.deadline, charge.group, call).await
}
