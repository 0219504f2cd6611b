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
    command.arg(&charge.key);
    if charge.rule.near.is_some() {
        command.arg(shared.connection.keys.claims(&charge.key));
    }
    let call = async { link.send(&command).await.map(drop).map_err(Fault::from) };
    shared.connection.within(shared.options.deadline, charge.group, call).await
}
