//! The time of a key that `CL.THROTTLE` advances, with parameters that each call brings.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{EngineError, Nanos, RuleError};
use redis::Value;

use crate::algorithm::{FARTHEST, micros};
use crate::connection::fault::Fault;
use crate::engine::RedisEngine;
use crate::reply::split_time;
use crate::shared::Shared;
use crate::status::count;

/// The name in the records' keys in place of a rule's name. No rule can have this name.
const NAME: &str = "cl.throttle";
/// The number of units of 2⁻¹⁶ ns in a microsecond.
const MICROSECOND: i128 = 1000 << 16;

/// An advance of a key's time, in units of 2⁻¹⁶ ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// The distance by which the time is advanced, from now or from the key's time if that is
    /// later.
    pub by: i128,
    /// The farthest that the new time may be ahead of now; beyond it, the call changes nothing.
    pub most: i128,
}

/// The times that Redis saw, in units of 2⁻¹⁶ ns since 1970. They determine if the key's time was
/// advanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shifted {
    /// The present time by Redis's clock.
    pub now: i128,
    /// The key's time before the call, if it had one.
    pub before: Option<i128>,
}

impl RedisEngine {
    /// Advances a key's time atomically, within the deadline.
    ///
    /// # Errors
    /// Returns an error if a distance is more than a hundred years, or if Redis did not answer. The
    /// caller then decides without Redis, and the advance is not delivered later.
    pub async fn shift(
        &self,
        key: &[u8],
        shift: Shift,
        now: Option<Nanos>,
    ) -> Result<Shifted, EngineError> {
        let farthest = FARTHEST.as_micros() as i128 * MICROSECOND;
        let good = |span: i128| (0..=farthest).contains(&span);
        if !good(shift.by) || !good(shift.most) {
            let problem = "more than a hundred years until full, which Redis cannot store exactly";
            return Err(RuleError::new(problem.to_owned()).into());
        }
        let shared = self.shared();
        let now = shared.clocks.given(now);
        let answer = self::shift(shared, key, shift, now).await;
        let counters = &shared.connection.counters;
        count(if answer.is_ok() {
            &counters.shared
        } else {
            &counters.alone
        });
        answer.map_err(EngineError::from)
    }

    /// Deletes a key's time. Returns true if Redis had one.
    ///
    /// # Errors
    /// Returns an error if Redis did not answer within the deadline.
    pub async fn delete_shift(&self, key: &[u8]) -> Result<bool, EngineError> {
        let connection = &self.shared().connection;
        let record = connection.keys.record(key, NAME);
        let group = connection.group(&record);
        let mut link = connection.link(group).map_err(EngineError::from)?;
        let mut command = redis::cmd("DEL");
        command.arg(record);
        let call = async { link.send(&command).await.map_err(Fault::from) };
        let deleted = connection
            .within(self.shared().options.deadline, group, call)
            .await;
        Ok(deleted.map_err(EngineError::from)? == Value::Int(1))
    }
}

async fn shift(
    shared: &Arc<Shared>,
    key: &[u8],
    shift: Shift,
    now: Option<Nanos>,
) -> Result<Shifted, Fault> {
    let record = shared.connection.keys.record(key, NAME);
    let group = shared.connection.group(&record);
    let mut link = shared.connection.link(group)?;
    let arguments = arguments(shared.options.linger, shift, now);
    let call = async {
        let keys = std::slice::from_ref(&record);
        let script = &shared.connection.scripts.throttle;
        let answer = link
            .call(script, keys, std::slice::from_ref(&arguments))
            .await?;
        let nonsense = || Fault::Record("the script's answer makes no sense".to_owned());
        let Value::BulkString(bytes) = answer else {
            return Err(nonsense());
        };
        let (time, before) = split_time(&bytes).ok_or_else(nonsense)?;
        let now = now.or(time).ok_or_else(nonsense)?;
        Ok(Shifted {
            now: i128::from(now.get()) << 16,
            before: decode(before),
        })
    };
    shared
        .connection
        .within(shared.options.deadline, group, call)
        .await
}

fn arguments(linger: Duration, shift: Shift, now: Option<Nanos>) -> Vec<u8> {
    let whole = |span: i128| (span / MICROSECOND) as f64;
    let rest = |span: i128| (span % MICROSECOND) as f64;
    let now = now.map_or(-1.0, micros);
    let linger = linger.as_millis() as f64;
    let Shift { by, most } = shift;
    let numbers = [now, whole(by), rest(by), whole(most), rest(most), linger];
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

/// Reads the time in a record: seven bytes of microseconds, and four bytes of the remaining units.
fn decode(record: &[u8]) -> Option<i128> {
    let (&whole, rest) = record.split_first_chunk::<7>()?;
    let (&rest, _) = rest.split_first_chunk::<4>()?;
    let mut micros = [0; 16];
    micros[..7].copy_from_slice(&whole);
    Some(i128::from_le_bytes(micros) * MICROSECOND + i128::from(u32::from_le_bytes(rest)))
}
