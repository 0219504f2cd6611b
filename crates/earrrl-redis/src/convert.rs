//! Records written under other parameters of the same rule.
//!
//! A record begins with the tag of its parameters. Where that is another, the script does nothing and
//! says so, and the record is converted here, by the same function as in every engine, and put back
//! if it has not changed meanwhile: two more round trips, once a client and change of a rule. The
//! parameters of a tag come from this engine's own past or from a hash in Redis, where every engine
//! writes down its rules; a record of nobody's parameters counts as none.

use std::time::Duration;

use earrrl::{Limit, Nanos, Rule};
use redis::Value;

use crate::asked::Asked;
use crate::link::{Fault, Link};
use crate::record;
use crate::shared::Shared;
use crate::status::count;

/// Replaces the record of a charge by one of its rule's present parameters.
pub(crate) async fn convert(
    shared: &Shared,
    link: &mut Link,
    asked: &Asked,
    now: Nanos,
) -> Result<(), Fault> {
    let mut get = redis::cmd("GET");
    get.arg(&asked.key);
    let Value::BulkString(old) = link.send(&get).await? else { return Ok(()) };
    let tag = old.first_chunk().map(|tag| u32::from_le_bytes(*tag));
    if tag == Some(asked.rule.tag) && record::decode(asked.rule.rule.limit(), &old, now).is_some() {
        return Ok(());
    }
    let limit = match tag {
        Some(tag) => limit_of(shared, link, asked, tag).await,
        None => None,
    };
    if limit.is_none() {
        tracing::warn!(rule = asked.rule.name, "a record of unknown parameters is dropped");
    }
    let new = limit.and_then(|limit| converted(shared, asked, &limit, &old, now));
    let (new, life) = new.unwrap_or_default();
    let life = (life + shared.options.linger).as_millis() as u64 + 1;
    let args = [old, new, life.to_string().into_bytes()];
    link.call(&shared.scripts.swap, std::slice::from_ref(&asked.key), &args).await?;
    count(&shared.counters.converted);
    Ok(())
}

/// The parameters of a tag.
async fn limit_of(shared: &Shared, link: &mut Link, asked: &Asked, tag: u32) -> Option<Limit> {
    if let Some((_, limit)) = asked.rule.earlier.iter().find(|(earlier, _)| *earlier == tag) {
        return Some(*limit);
    }
    let mut get = redis::cmd("HGET");
    get.arg(shared.keys.history(&asked.rule.name)).arg(tag);
    let Ok(Value::BulkString(text)) = link.send(&get).await else { return None };
    let rule: Rule = std::str::from_utf8(&text).ok()?.parse().ok()?;
    (crate::parameters::tag(rule.limit()) == tag).then(|| *rule.limit())
}

/// The record under the present parameters, and how long it must live.
fn converted(
    shared: &Shared,
    asked: &Asked,
    old: &Limit,
    bytes: &[u8],
    now: Nanos,
) -> Option<(Vec<u8>, Duration)> {
    let state = record::decode(old, bytes, now)?;
    let stored = record::stored_at(old, bytes).unwrap_or(Nanos::ZERO);
    let at = shared.conversion_time(asked, now).max(stored.min(now));
    let new = asked.rule.rule.limit();
    let state = new.convert(old, state, at)?;
    let record = record::encode(new, asked.rule.tag, &state, at)?;
    Some((record, record::life(new, &state, now)))
}
