//! Records written under other parameters of the same rule.
//!
//! A record begins with the tag of its parameters. Where that is another, the script does nothing and
//! says so, and the record is converted here, by the same function as in every engine, and put back
//! if it has not changed meanwhile: two more round trips, once a client and change of a rule. The
//! parameters of a tag come from this engine's own past or from a hash in Redis, where every engine
//! writes down its rules; a record of nobody's parameters counts as none.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Limit, Nanos, Rule};
use redis::Value;
use tokio::time::timeout;

use crate::algorithm;
use crate::link::{Fault, Link};
use crate::reply::FOREIGN;
use crate::request::AskedCharge;
use crate::shared::Shared;
use crate::status::count;

/// Conversions that one call may meet: other nodes may convert the same record back meanwhile.
const CONVERSIONS: usize = 4;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// What came of a call.
pub(crate) enum Called<'a, T> {
    Done(T),
    /// Nothing was done at this time: the record of this charge is of other parameters.
    Foreign(&'a AskedCharge, Nanos),
}

/// The same, where a script answers no more than that.
pub(crate) fn done_or_foreign<'a>(
    answer: &Value,
    asked: &'a AskedCharge,
    now: Nanos,
) -> Called<'a, ()> {
    match answer {
        Value::BulkString(verdict) if verdict.first() == Some(&FOREIGN) => {
            Called::Foreign(asked, now)
        }
        _ => Called::Done(()),
    }
}

/// Calls a script, and converts what it finds written under other parameters, until it is done.
pub(crate) async fn converting<'a, T, F>(
    shared: &Arc<Shared>,
    link: Link,
    call: impl Fn(Link) -> F,
) -> Result<T, Fault>
where
    F: Future<Output = Result<Called<'a, T>, Fault>>,
{
    for _ in 0..CONVERSIONS {
        match call(link.clone()).await? {
            Called::Done(answer) => return Ok(answer),
            Called::Foreign(asked, now) => by_itself(shared, link.clone(), asked, now).await?,
        }
    }
    Err(Fault::Record("converted over and over".to_owned()))
}

/// Converts a record, also where the caller does not wait for that long.
async fn by_itself(
    shared: &Arc<Shared>,
    mut link: Link,
    asked: &AskedCharge,
    now: Nanos,
) -> Result<(), Fault> {
    let (shared, asked) = (shared.clone(), asked.clone());
    let task = async move {
        let converted = convert(&shared, &mut link, &asked, now);
        timeout(PATIENCE, converted).await.unwrap_or(Err(Fault::Late))
    };
    let stopped = |_| Err(Fault::Lost("a task was stopped".to_owned()));
    tokio::spawn(task).await.unwrap_or_else(stopped)
}

/// Replaces the record of a charge by one of its rule's present parameters.
pub(crate) async fn convert(
    shared: &Shared,
    link: &mut Link,
    asked: &AskedCharge,
    now: Nanos,
) -> Result<(), Fault> {
    let mut get = redis::cmd("GET");
    get.arg(&asked.key);
    let Value::BulkString(old) = link.send(&get).await? else { return Ok(()) };
    if algorithm::is_of(asked.rule.rule.limit(), asked.rule.tag, &old) {
        return Ok(());
    }
    let limit = limit_of(shared, link, asked, &old).await?;
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

/// The parameters that a record was written under; `None` only where Redis has none for its tag.
async fn limit_of(
    shared: &Shared,
    link: &mut Link,
    asked: &AskedCharge,
    old: &[u8],
) -> Result<Option<Limit>, Fault> {
    let known = asked.rule.earlier.iter().find(|(tag, limit)| algorithm::is_of(limit, *tag, old));
    if let Some((_, limit)) = known {
        return Ok(Some(*limit));
    }
    let mut get = redis::cmd("HVALS");
    get.arg(shared.keys.history(&asked.rule.name));
    let Value::Array(texts) = link.send(&get).await? else {
        return Err(Fault::Record("the rule's parameters make no sense".to_owned()));
    };
    let rules = texts.iter().filter_map(|text| match text {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<Rule>().ok(),
        _ => None,
    });
    let mut limits = rules.map(|rule| *rule.limit());
    Ok(limits.find(|limit| algorithm::is_of(limit, algorithm::tag(limit), old)))
}

/// The record under the present parameters, and how long it must live.
fn converted(
    shared: &Shared,
    asked: &AskedCharge,
    old: &Limit,
    bytes: &[u8],
    now: Nanos,
) -> Option<(Vec<u8>, Duration)> {
    let state = algorithm::decode(old, bytes, now)?;
    let stored = algorithm::stored_at(old, bytes, now).unwrap_or(Nanos::ZERO);
    let at = shared.conversion_time(asked, now).max(stored.min(now));
    let new = asked.rule.rule.limit();
    let state = new.convert(old, state, at)?;
    let record = algorithm::encode(new, asked.rule.tag, &state, at)?;
    Some((record, algorithm::life(new, &state, now)))
}
