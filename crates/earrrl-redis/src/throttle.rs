//! A time that calls move on, each with parameters of its own, as `CL.THROTTLE` has it.

use std::sync::Arc;

use earrrl::{EngineError, Nanos, RuleError};
use redis::Value;

use crate::algorithm::micros;
use crate::engine::RedisEngine;
use crate::link::Fault;
use crate::reply::split_time;
use crate::shared::Shared;
use crate::status::count;

/// What stands for the rule in a record's key; no rule can have this name.
const NAME: &str = "cl.throttle";
/// Units of a microsecond.
const MICROSECOND: i128 = 1000 << 16;
/// The farthest a time may be moved: beyond, microseconds since 1970 are no exact doubles.
const FARTHEST: i128 = 100 * 366 * 86_400 * 1_000_000 * MICROSECOND;

/// How a key's time is to be moved, in units of 2⁻¹⁶ ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// By so much, from now or from where it stands, whichever is later.
    pub by: i128,
    /// Unless it would lie farther than this after now.
    pub most: i128,
}

/// What Redis saw, in units of 2⁻¹⁶ ns since 1970; whether the time was moved follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shifted {
    /// The present time.
    pub now: i128,
    /// Where the key's time stood, if it had one.
    pub before: Option<i128>,
}

impl RedisEngine {
    /// Moves a key's time on, atomically, within the deadline.
    ///
    /// # Errors
    /// A shift of over a hundred years; or that Redis did not answer. What is decided then is the
    /// caller's: nothing is handed over.
    pub async fn shift(
        &self,
        key: &[u8],
        shift: Shift,
        now: Option<Nanos>,
    ) -> Result<Shifted, EngineError> {
        let good = |span: i128| (0..=FARTHEST).contains(&span);
        if !good(shift.by) || !good(shift.most) {
            let problem = "over a hundred years to full, which can't be told exactly on Redis";
            return Err(RuleError::new(problem.to_owned()).into());
        }
        let shared = self.shared();
        let now = shared.given(now);
        let answer = shared.shift(key, shift, now).await;
        let counters = &shared.counters;
        count(if answer.is_ok() { &counters.shared } else { &counters.alone });
        answer.map_err(EngineError::from)
    }
}

impl Shared {
    async fn shift(
        self: &Arc<Self>,
        key: &[u8],
        shift: Shift,
        now: Option<Nanos>,
    ) -> Result<Shifted, Fault> {
        let record = self.keys.record(key, NAME);
        let group = self.group(&record);
        let mut link = self.link(group)?;
        let arguments = self.arguments(shift, now);
        let call = async {
            let keys = std::slice::from_ref(&record);
            let script = &self.scripts.throttle;
            let answer = link.call(script, keys, std::slice::from_ref(&arguments)).await?;
            let nonsense = || Fault::Record("the script's answer makes no sense".to_owned());
            let Value::BulkString(bytes) = answer else { return Err(nonsense()) };
            let (time, before) = split_time(&bytes).ok_or_else(nonsense)?;
            let now = now.or(time).ok_or_else(nonsense)?;
            Ok(Shifted { now: i128::from(now.get()) << 16, before: decode(before) })
        };
        self.within(self.options.deadline, group, call).await
    }

    fn arguments(&self, shift: Shift, now: Option<Nanos>) -> Vec<u8> {
        let whole = |span: i128| (span / MICROSECOND) as f64;
        let rest = |span: i128| (span % MICROSECOND) as f64;
        let now = now.map_or(-1.0, micros);
        let linger = self.options.linger.as_millis() as f64;
        let Shift { by, most } = shift;
        let numbers = [now, whole(by), rest(by), whole(most), rest(most), linger];
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }
}

/// A record: seven bytes of microseconds, four of the rest.
fn decode(record: &[u8]) -> Option<i128> {
    let (&whole, rest) = record.split_first_chunk::<7>()?;
    let rest = <[u8; 4]>::try_from(rest).ok()?;
    let mut micros = [0; 16];
    micros[..7].copy_from_slice(&whole);
    Some(i128::from_le_bytes(micros) * MICROSECOND + i128::from(u32::from_le_bytes(rest)))
}
