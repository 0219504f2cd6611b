//! Conversion of records that were written under other parameters of the same rule.
//!
//! A record begins with the tag of its parameters. A script that finds another tag changes nothing
//! and reports the tag. This node then converts the record with the same pure function that every
//! engine uses, and writes it back unless it has changed meanwhile. That takes two more round
//! trips, once for each client and rule change. The parameters that belong to a tag come from this
//! engine's memory, or from a hash in Redis to which every engine writes its rules. A record with
//! an unknown tag is dropped.
//!
//! The counts of a fixed window or a sliding counter do not tell when the requests came, so every
//! conversion to another window is inexact. Therefore the old record of such a limit is kept at a key of
//! its own. When a server with the old parameters asks about the client again, it continues with the
//! kept record instead of converting the new one. While two versions of a rule run, each version counts
//! only the requests that its own servers are asked about.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Limit, Nanos, Rule, State};
use redis::Value;
use tokio::time::timeout;

use crate::algorithm::{self, AlgorithmKind};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::reply::FOREIGN;
use crate::request::KeyedCharge;
use crate::shared::Shared;
use crate::status::count;

/// The most attempts to call a script. Several may be necessary, since other nodes may convert the
/// record back meanwhile. With four attempts and twelve nodes that ask about one client at once, a
/// few in ten thousand requests were decided without Redis.
const MAX_CALLS: usize = 16;

/// The time for which the record of another version is kept after its counts have expired. While it
/// exists, a server with its parameters knows that the client starts afresh. Without it, that server
/// would convert the counts of another window, which may be longer, and deny the client.
const VERSION_KEPT: Duration = Duration::from_secs(3600);

/// The timeout of one conversion.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The outcome of a call of a script.
pub(crate) enum Called<'a, T> {
    Done(T),
    /// Nothing was changed, since Redis's clock was set. The next call uses the new time.
    Again,
    /// Nothing was changed at this time, since the record of this charge has other parameters.
    Foreign(&'a KeyedCharge, Nanos),
}

/// Returns the outcome of a script that reports only success or other parameters.
pub(crate) fn done_or_foreign<'a>(
    answer: &Value,
    charge: &'a KeyedCharge,
    now: Nanos,
) -> Called<'a, ()> {
    match answer {
        Value::BulkString(verdict) if verdict.first() == Some(&FOREIGN) => {
            Called::Foreign(charge, now)
        }
        _ => Called::Done(()),
    }
}

/// Calls a script until it succeeds. Converts records of other parameters between the calls.
pub(crate) async fn converting<'a, T, F>(
    shared: &Arc<Shared>,
    link: Link,
    call: impl Fn(Link) -> F,
) -> Result<T, Fault>
where
    F: Future<Output = Result<Called<'a, T>, Fault>>,
{
    for _ in 0..MAX_CALLS {
        match call(link.clone()).await? {
            Called::Done(answer) => return Ok(answer),
            Called::Again => {}
            Called::Foreign(charge, now) => {
                convert_in_background(shared, link.clone(), charge, now).await?
            }
        }
    }
    Err(Fault::Record("converted over and over".to_owned()))
}

/// Converts a record in a task of its own, so that the conversion completes even if the caller is
/// cancelled.
async fn convert_in_background(
    shared: &Arc<Shared>,
    mut link: Link,
    charge: &KeyedCharge,
    now: Nanos,
) -> Result<(), Fault> {
    let shared = shared.clone();
    let charge = charge.clone();
    let task = async move {
        let converted = convert(&shared, &mut link, &charge, now);
        timeout(TIMEOUT, converted)
            .await
            .unwrap_or(Err(Fault::Late))
    };
    let stopped = |_| Err(Fault::Lost("a task was stopped".to_owned()));
    tokio::spawn(task).await.unwrap_or_else(stopped)
}

/// Replaces a charge's record by one with the present parameters of its rule.
pub(crate) async fn convert(
    shared: &Shared,
    link: &mut Link,
    charge: &KeyedCharge,
    now: Nanos,
) -> Result<(), Fault> {
    let own = charge.rule.rule.limit();
    let Some(old) = read(link, &charge.key).await? else {
        return Ok(());
    };
    let is_own = algorithm::is_of(own, charge.rule.tag, &old);
    if is_own && algorithm::decode(own, &old, now).is_some() {
        return Ok(());
    }
    let is_old = |limit: &Limit, tag| algorithm::is_of(limit, tag, &old);
    let limit = if is_own {
        None
    } else {
        earlier_limit(shared, link, charge, is_old).await?
    };
    if limit.is_none() {
        let why = if is_own {
            "its counts are invalid"
        } else {
            "its parameters are unknown"
        };
        tracing::warn!(rule = charge.rule.name, why, "a record is dropped");
    }
    let mut keys = vec![charge.key.clone()];
    let mut version = Vec::new();
    let mut new = None;
    if let Some(limit) = limit
        .as_ref()
        .filter(|_| algorithm::of(own).keeps_versions())
    {
        let key = shared.connection.keys.version(&charge.key);
        let kept = read(link, &key).await?;
        new = kept
            .as_ref()
            .and_then(|kept| kept_version(charge, kept, now));
        let life = life_of(limit, &old, now).unwrap_or_default();
        charge
            .rule
            .converted
            .note_kept(shared.clocks.local() + life);
        version.extend([kept.unwrap_or_default(), millis(life + VERSION_KEPT)]);
        keys.push(key);
    }
    let new = new.or_else(|| converted(charge, limit.as_ref()?, &old, now));
    let (new, life) = new.unwrap_or_default();
    let mut args = vec![old, new, millis(life + shared.linger(&charge.rule))];
    args.extend(version);
    link.call(&shared.connection.scripts.swap, &keys, &args)
        .await?;
    count(&shared.connection.counters.converted);
    Ok(())
}

async fn read(link: &mut Link, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
    let mut get = redis::cmd("GET");
    get.arg(key);
    Ok(match link.send(&get).await? {
        Value::BulkString(record) => Some(record),
        _ => None,
    })
}

/// Returns a duration as an argument of a script, in milliseconds that are rounded up.
fn millis(life: Duration) -> Vec<u8> {
    (life.as_millis() + 1).to_string().into_bytes()
}

/// Returns the kept record and how long it must live, if it was written under the present parameters
/// of the rule.
fn kept_version(charge: &KeyedCharge, kept: &[u8], now: Nanos) -> Option<(Vec<u8>, Duration)> {
    let own = charge.rule.rule.limit();
    let is_own = algorithm::is_of(own, charge.rule.tag, kept);
    let life = is_own.then(|| life_of(own, kept, now)).flatten()?;
    Some((kept.to_vec(), life))
}

/// Returns how long the counts of a record matter; `None` if the record is invalid.
fn life_of(limit: &Limit, record: &[u8], now: Nanos) -> Option<Duration> {
    let state = algorithm::decode(limit, record, now)?;
    Some(algorithm::life(limit, &state, now))
}

/// Returns the parameters of a charge's rule that `is_wanted` accepts, given the tag of their records;
/// `None` if neither this node nor Redis has them.
pub(crate) async fn earlier_limit(
    shared: &Shared,
    link: &mut Link,
    charge: &KeyedCharge,
    is_wanted: impl Fn(&Limit, u32) -> bool,
) -> Result<Option<Limit>, Fault> {
    let known = charge
        .rule
        .earlier
        .iter()
        .find(|(tag, limit)| is_wanted(limit, *tag));
    if let Some((_, limit)) = known {
        return Ok(Some(*limit));
    }
    let mut get = redis::cmd("HVALS");
    get.arg(shared.connection.keys.history(&charge.rule.name));
    let Value::Array(texts) = link.send(&get).await? else {
        return Err(Fault::Record(
            "the rule's parameters make no sense".to_owned(),
        ));
    };
    let rules = texts.iter().filter_map(|text| match text {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<Rule>().ok(),
        _ => None,
    });
    let mut limits = rules.map(|rule| *rule.limit());
    Ok(limits.find(|limit| is_wanted(limit, algorithm::tag(limit))))
}

/// Returns the record under the present parameters, and the time for which it must be kept.
fn converted(
    charge: &KeyedCharge,
    old: &Limit,
    bytes: &[u8],
    now: Nanos,
) -> Option<(Vec<u8>, Duration)> {
    let state = algorithm::decode(old, bytes, now)?;
    let stored = algorithm::stored_at(old, bytes, now).unwrap_or(Nanos::ZERO);
    let at = conversion_time(charge, old, &state, now).max(stored.min(now));
    let new = charge.rule.rule.limit();
    let state = new.convert(old, state, at)?;
    let record = algorithm::encode(new, charge.rule.tag, &state, at)?;
    Some((record, algorithm::life(new, &state, now)))
}

/// Returns the microsecond to convert a record at: when this rule became known here, since the new
/// parameters hold from then on. If other nodes use other parameters, the record may have been written
/// since, and it is converted at present: a bucket that refills under both would end with a debt that
/// nobody made, and the count of a window would move to one that is over. An average has the time at
/// which it was stored.
fn conversion_time(charge: &KeyedCharge, old: &Limit, state: &State, now: Nanos) -> Nanos {
    let rule = &charge.rule;
    let is_earlier = rule.earlier.iter().any(|(_, limit)| limit == old);
    let is_later = algorithm::of(old)
        .left_after(state)
        .is_some_and(|at| at > rule.since);
    let others = rule.converted.add(&charge.key) || !is_earlier || is_later;
    let is_average = matches!(
        rule.kind,
        AlgorithmKind::RecentAverage | AlgorithmKind::Exponential
    );
    let at = if others && !is_average {
        now
    } else {
        rule.since.min(now)
    };
    Nanos::new(at.get() / 1000 * 1000)
}
