//! The time of a key that `CL.THROTTLE` advances, with parameters that each call brings: a request under a token
//! bucket, whose script gets the parameters of the call in place of those of a rule.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{EngineError, Nanos, RuleError};
use redis::Value;

use crate::algorithm::{AlgorithmKind, FARTHEST, Fields};
use crate::connection::fault::Fault;
use crate::connection::script::Frame;
use crate::engine::RedisEngine;
use crate::reply::{self, Reply};
use crate::send::head;
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
        Ok(answer?)
    }

    /// Deletes a key's time. Returns true if Redis had one.
    ///
    /// # Errors
    /// Returns an error if Redis did not answer within the deadline.
    pub async fn delete_shift(&self, key: &[u8]) -> Result<bool, EngineError> {
        let connection = &self.shared().connection;
        let record = connection.keys.record(key, NAME);
        let group = connection.group(&record);
        let mut delete = redis::cmd("DEL");
        delete.arg(record);
        Ok(connection.send(group, &delete).await? == Value::Int(1))
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
    let keys = [record];
    let args = [argument(shared.options.linger, shift, now)];
    let scripts = &shared.connection.scripts;
    let script = scripts.get(Frame::Single, [AlgorithmKind::TokenBucket]);
    let answer = shared.connection.call(group, script, &keys, &args);
    let Value::BulkString(bytes) = answer.await? else {
        return Err(Fault::nonsense());
    };
    let Some(Reply::Decided { time, observed }) = reply::single(&bytes) else {
        return Err(Fault::nonsense());
    };
    let now = now.or(time).ok_or_else(Fault::nonsense)?;
    Ok(Shifted {
        now: i128::from(now.get()) << 16,
        before: observed.first().and_then(|one| decode(&one.state)),
    })
}

/// Returns the argument of a bucket's script, with 2⁻¹⁶ ns in place of ticks.
fn argument(linger: Duration, Shift { by, most }: Shift, now: Option<Nanos>) -> Vec<u8> {
    let mut packed = head(now, u8::from(by > 0), f64::INFINITY, None);
    let split = |span: i128| [(span / MICROSECOND) as f64, (span % MICROSECOND) as f64];
    let [full, full_rest] = split(most);
    packed.numbers(&[MICROSECOND as f64, full, full_rest, -1.0, 0.0]);
    packed.numbers(&split(by));
    // Every record is farther ahead than -1, so it tells when it was stored: the parameters do not tell how far
    // ahead it can be, and yet a clock that is set back is noticed.
    let step = (full / 4.0).ceil() + 1000.0;
    packed.numbers(&[-1.0, step, linger.as_millis() as f64]);
    packed.0
}

/// Reads the time in a record: after the byte that tells when it was made, seven bytes of microseconds, and four of
/// the remaining units.
fn decode(record: &[u8]) -> Option<i128> {
    let mut fields = Fields(record.get(1..)?);
    let micros = fields.whole(7)?;
    let rest = fields.whole(4)?;
    Some(i128::from(micros) * MICROSECOND + i128::from(rest))
}
