//! The commands about rules and their clients that are no questions: `EARRRL.CHECKATTR`, reservations, refunds, resets
//! and lists. Each parses its words, checks the client's token, asks the service and writes the reply.

use std::time::Duration;

use earrrl::internal::Name;
use earrrl::{Cost, HoldId, HoldTerms, MAX_CHARGES, Mode, Nanos, Wait};
use smallvec::SmallVec;

use super::codec::Request;
use super::decision::{write_committed, write_matching, write_reserved};
use super::question::{cost, wrong};
use super::reply::Writer;
use super::session::{Refusal, Session};
use crate::config::access::{Access, Scope};
use crate::service::ask::Ask;
use crate::service::attributes::{Attributes, MAX_ATTRIBUTES};
use crate::service::error::AskError;
use crate::service::reports::{MAX_TOP, SurveyedClient};
use crate::service::reserve::{ActualCosts, time_to_live, with_id};
use crate::service::rule::ActiveRule;
use crate::service::rules::ActiveRules;

/// Answers `EARRRL.CHECKATTR name value [name value …]`: decides under every rule that matches
/// these attributes, as `POST /v1/check` does with `attributes`.
pub(super) async fn check_attributes(
    session: &Session,
    request: Request<'_, '_>,
    rules: &ActiveRules,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    session.may(Scope::Check)?;
    session.access.permit_all_rules()?;
    let count = request.len() / 2;
    if request.len().is_multiple_of(2) || count == 0 {
        return Err(Refusal::WordCount);
    }
    if count > MAX_ATTRIBUTES {
        return Err(Refusal::Error(format!(
            "attributes: {count}; at most {MAX_ATTRIBUTES}"
        )));
    }
    let mut words = request.words().skip(1);
    let mut pairs = Vec::with_capacity(count);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        let name = std::str::from_utf8(name)
            .map_err(|_| Refusal::Error("attributes: expected a name in UTF-8".to_owned()))?;
        pairs.push((name.into(), value.into()));
    }
    let attributes = Attributes::named(pairs, &rules.reading)?;
    rules.log_unread(attributes.names());
    let service = &session.server.service;
    let answer = service
        .ask_matching(rules, &attributes, Mode::Check.into())
        .await;
    let answer = answer.judged()?;
    write_matching(&answer, &mut Writer::new(out, session.version));
    Ok(())
}

/// Answers `EARRRL.REFUND rule key cost [T0 seconds]`.
pub(super) async fn refund(
    session: &Session,
    request: Request<'_, '_>,
    rules: &ActiveRules,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Scope::Refund)?;
    let words = (request.word(1), request.word(2), request.word(3));
    let (Some(name), Some(key), Some(amount)) = words else {
        return Err(Refusal::WordCount);
    };
    let charged_at = match (request.len(), request.word(4), request.word(5)) {
        (4, ..) => None,
        (6, Some(word), Some(time)) if word.eq_ignore_ascii_case(b"T0") => Some(instant(time)?),
        _ => return Err(Refusal::WordCount),
    };
    let rule = rules.named(name)?;
    session.access.permit_rule(&rule.name)?;
    let ask = Ask::new(rule, key, Some(cost(amount)?));
    session.server.service.refund(&ask, charged_at).await?;
    reply.simple("OK");
    Ok(())
}

/// Parses a time in seconds since the Unix epoch. The parser for costs serves here too: it is exact
/// to 1e-9, which for seconds is one nanosecond.
fn instant(text: &[u8]) -> Result<Nanos, Refusal> {
    let seconds: Option<Cost> = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    let nanos = seconds.and_then(|seconds| u64::try_from(seconds.billionths()).ok());
    let expected = "a number of seconds since the Unix epoch, with at most nine decimals";
    nanos
        .map(Nanos::new)
        .ok_or_else(|| wrong("t0", text, expected))
}

/// Answers `EARRRL.RESET rule key`: deletes the stored state of this client under the rule.
pub(super) async fn reset(
    session: &Session,
    request: Request<'_, '_>,
    rules: &ActiveRules,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Scope::Reset)?;
    let (3, Some(name), Some(key)) = (request.len(), request.word(1), request.word(2)) else {
        return Err(Refusal::WordCount);
    };
    let rule = rules.named(name)?;
    session.access.permit_rule(&rule.name)?;
    session
        .server
        .service
        .reset(&Ask::new(rule, key, None))
        .await?;
    reply.simple("OK");
    Ok(())
}

/// Answers `DEL key [key …]` with the number of keys of `CL.THROTTLE` that it deleted.
pub(super) async fn del(
    session: &Session,
    request: Request<'_, '_>,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Scope::Reset)?;
    session.access.permit_all_rules()?;
    if request.len() < 2 {
        return Err(Refusal::WordCount);
    }
    let mut deleted = 0;
    for key in request.words().skip(1) {
        deleted += i64::from(
            session
                .server
                .service
                .engine()
                .delete_throttle(key)
                .await
                .map_err(AskError::from)?,
        );
    }
    reply.integer(deleted);
    Ok(())
}

/// Answers `EARRRL.RULES` with the name and text of each rule that the client's token permits.
pub(super) fn rules(
    session: &Session,
    rules: &ActiveRules,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Scope::Peek)?;
    let is_permitted = |rule: &&ActiveRule| session.access.permit_rule(&rule.name).is_ok();
    let permitted: Vec<_> = rules.iter().filter(is_permitted).collect();
    reply.map(permitted.len());
    for rule in permitted {
        reply.bulk(rule.name.as_bytes());
        reply.bulk(rule.own.rule.to_string().as_bytes());
    }
    Ok(())
}

/// Answers `EARRRL.RESERVE rule key [COST c] [TTL s] [ATMOST] [ID id] [AND rule key [COST c] …]`.
/// The terms hold for the whole reservation, after whichever charge they are.
pub(super) async fn reserve(
    session: &Session,
    request: Request<'_, '_>,
    rules: &ActiveRules,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    session.may(Scope::Check)?;
    let Reservation { asks, terms } = parse_reservation(request, &session.access, rules)?;
    let service = &session.server.service;
    let reserved = service.reserve(&asks, terms, false).await?;
    write_reserved(
        &reserved,
        asks.len() > 1,
        &mut Writer::new(out, session.version),
    );
    Ok(())
}

/// The words of `EARRRL.RESERVE`.
struct Reservation<'a> {
    asks: SmallVec<[Ask<'a>; 1]>,
    terms: HoldTerms,
}

fn parse_reservation<'a>(
    request: Request<'a, '_>,
    access: &Access,
    rules: &'a ActiveRules,
) -> Result<Reservation<'a>, Refusal> {
    let mut words = request.words().skip(1);
    let mut asks = SmallVec::new();
    let mut terms = HoldTerms::default();
    let mut has_ttl = false;
    let mut is_at_most = false;
    loop {
        let (Some(name), Some(key)) = (words.next(), words.next()) else {
            return Err(Refusal::WordCount);
        };
        let rule = rules.named(name)?;
        access.permit_rule(&rule.name)?;
        let mut estimate = None;
        let mut goes_on = false;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(Refusal::WordCount);
            if word.eq_ignore_ascii_case(b"COST") && estimate.is_none() {
                estimate = Some(cost(value()?)?);
            } else if word.eq_ignore_ascii_case(b"TTL") && !has_ttl {
                (terms, has_ttl) = (terms.ttl(seconds(value()?)?), true);
            } else if word.eq_ignore_ascii_case(b"ATMOST") && !is_at_most {
                (terms, is_at_most) = (terms.at_most(), true);
            } else if word.eq_ignore_ascii_case(b"ID") && terms.id.is_none() {
                terms = with_id(terms, &String::from_utf8_lossy(value()?))?;
            } else if word.eq_ignore_ascii_case(b"AND") && asks.len() + 1 < MAX_CHARGES {
                goes_on = true;
                break;
            } else {
                let expected = "expected COST, TTL, ATMOST, ID, AND or nothing more";
                return Err(Refusal::Error(expected.to_owned()));
            }
        }
        asks.push(Ask::new(rule, key, estimate));
        if !goes_on {
            return Ok(Reservation { asks, terms });
        }
    }
}

/// Parses a number of seconds. The parser for costs serves here too: it is exact to 1e-9.
fn seconds(text: &[u8]) -> Result<Duration, Refusal> {
    let text = String::from_utf8_lossy(text);
    Ok(time_to_live(&text, text.parse().ok())?)
}

/// Answers `EARRRL.COMMIT id [COST c | RULE rule COST c …]`. Without a cost, the estimates become the
/// actual costs.
pub(super) async fn commit(
    session: &Session,
    request: Request<'_, '_>,
    rules: &ActiveRules,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    session.may(Scope::Check)?;
    let mut words = request.words().skip(1);
    let id = parse_id(words.next())?;
    let costs = actual_costs(words)?;
    let (answer, repeated) = session.server.service.commit(rules, id, &costs).await?;
    write_committed(&answer, repeated, &mut Writer::new(out, session.version));
    Ok(())
}

/// Answers `EARRRL.RENEW id [TTL s]` with `OK`. Without a time, the default of reservations holds.
pub(super) async fn renew(
    session: &Session,
    request: Request<'_, '_>,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Scope::Check)?;
    let ttl = match (request.len(), request.word(2), request.word(3)) {
        (2, ..) => HoldTerms::default().ttl,
        (4, Some(word), Some(text)) if word.eq_ignore_ascii_case(b"TTL") => seconds(text)?,
        _ => return Err(Refusal::WordCount),
    };
    session
        .server
        .service
        .renew(parse_id(request.word(1))?, ttl)
        .await?;
    reply.simple("OK");
    Ok(())
}

fn parse_id(word: Option<&[u8]>) -> Result<HoldId, Refusal> {
    let text = word
        .and_then(|id| std::str::from_utf8(id).ok())
        .unwrap_or_default();
    Ok(text.parse().map_err(AskError::from)?)
}

/// Parses `[COST c | RULE rule COST c …]`.
fn actual_costs<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<ActualCosts<'a>, Refusal> {
    let expected = || Refusal::Error("expected COST, RULE or nothing more".to_owned());
    let mut all = None;
    let mut by_rule = Vec::new();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(Refusal::WordCount);
        if word.eq_ignore_ascii_case(b"COST") && all.is_none() && by_rule.is_empty() {
            all = Some(cost(value()?)?);
        } else if word.eq_ignore_ascii_case(b"RULE") && all.is_none() && by_rule.len() < MAX_CHARGES
        {
            let name = value()?;
            let name = std::str::from_utf8(name).map_err(|_| AskError::unknown_rule(name))?;
            if !value()?.eq_ignore_ascii_case(b"COST") {
                return Err(expected());
            }
            by_rule.push((name, cost(value()?)?));
        } else {
            return Err(expected());
        }
    }
    Ok(if by_rule.is_empty() {
        ActualCosts::All(all)
    } else {
        ActualCosts::ByRule(by_rule)
    })
}

/// Answers `EARRRL.TOP rule n` with an array of maps.
pub(super) async fn top(
    session: &Session,
    request: Request<'_, '_>,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Scope::Top)?;
    let (3, Some(name), Some(count)) = (request.len(), request.word(1), request.word(2)) else {
        return Err(Refusal::WordCount);
    };
    let number = std::str::from_utf8(count)
        .ok()
        .and_then(|count| count.parse().ok());
    let number = number.filter(|number| (1..=MAX_TOP).contains(number));
    let expected = || wrong("n", count, &format!("a whole number from 1 to {MAX_TOP}"));
    let count = number.ok_or_else(expected)?;
    let name = String::from_utf8_lossy(name);
    session.access.permit_rule(&name)?;
    let report = session.server.service.report(&name).await?;
    let clients = &report.clients[..count.min(report.clients.len())];
    reply.array(clients.len());
    clients
        .iter()
        .for_each(|client| write_client(client, reply));
    Ok(())
}

fn write_client(client: &SurveyedClient, reply: &mut Writer<'_>) {
    let SurveyedClient { figures, name } = client;
    reply.map(13);
    reply.bulk(b"key");
    match name {
        Some(name) => reply.bulk(&name.name),
        None => reply.nil(),
    }
    reply.bulk(b"fingerprint");
    reply.bulk(format!("{:010x}", figures.fingerprint).as_bytes());
    reply.bulk(b"rate");
    match figures.rate {
        Some(rate) => reply.double(rate),
        None => reply.nil(),
    }
    reply.bulk(b"usage");
    reply.double(figures.usage);
    reply.bulk(b"limit");
    reply.double(figures.limit);
    reply.bulk(b"remaining");
    reply.count(figures.remaining);
    reply.bulk(b"retry_after");
    match figures.retry_after {
        Wait::For(wait) => reply.seconds(wait),
        Wait::Never => reply.nil(),
    }
    reply.bulk(b"reset_after");
    reply.seconds(figures.reset_after);
    write_counts(name.as_ref(), reply);
}

/// Writes the counts that are stored with a client's name, and the times in seconds since the Unix epoch.
fn write_counts(name: Option<&Name>, reply: &mut Writer<'_>) {
    let counts = name
        .map(|name| (name.allowed, name.denied))
        .unwrap_or_default();
    reply.bulk(b"allowed");
    reply.count(counts.0);
    reply.bulk(b"denied");
    reply.count(counts.1);
    for (field, at) in [
        ("first_seen", name.map(|name| name.first_seen)),
        ("first_denied", name.and_then(|name| name.first_denied)),
        ("last_denied", name.and_then(|name| name.last_denied)),
    ] {
        reply.bulk(field.as_bytes());
        match at {
            Some(at) => reply.seconds(Duration::from_nanos(at.get())),
            None => reply.nil(),
        }
    }
}
