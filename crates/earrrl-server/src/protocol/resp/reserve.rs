//! The commands of reservations: `EARRRL.RESERVE`, `EARRRL.COMMIT` and `EARRRL.RENEW`.

use std::time::Duration;

use earrrl::{Cost, HoldId, HoldTerms, MAX_CHARGES};
use smallvec::SmallVec;

use super::codec::Request;
use super::decision::{write_committed, write_reserved};
use super::question::cost;
use super::refusal::Refusal;
use super::reply::Writer;
use super::session::Session;
use crate::config::access::{Access, Scope};
use crate::service::ask::Ask;
use crate::service::error::AskError;
use crate::service::reserve::{ActualCosts, time_to_live};
use crate::service::rules::ActiveRules;

/// Answers `EARRRL.RESERVE rule key [COST c] [TTL s] [ATMOST] [AND rule key [COST c] …]`.
/// The terms hold for the whole reservation, after whichever charge they are.
pub(super) async fn reserve(
    session: &Session,
    request: Request<'_, '_>,
    rules: &ActiveRules,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    session.may(Scope::Check)?;
    let Parsed { asks, terms } = parse(request, &session.access, rules)?;
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
struct Parsed<'a> {
    asks: SmallVec<[Ask<'a>; 1]>,
    terms: HoldTerms,
}

fn parse<'a>(
    request: Request<'a, '_>,
    access: &Access,
    rules: &'a ActiveRules,
) -> Result<Parsed<'a>, Refusal> {
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
            } else if word.eq_ignore_ascii_case(b"AND") && asks.len() + 1 < MAX_CHARGES {
                goes_on = true;
                break;
            } else {
                let expected = "expected COST, TTL, ATMOST, AND or nothing more";
                return Err(Refusal::Error(expected.to_owned()));
            }
        }
        asks.push(Ask::new(rule, key, estimate));
        if !goes_on {
            return Ok(Parsed { asks, terms });
        }
    }
}

/// Parses a number of seconds. The parser for costs serves here too: it is exact to 1e-9.
fn seconds(text: &[u8]) -> Result<Duration, Refusal> {
    let seconds: Option<Cost> = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    let problem = || {
        let shown = String::from_utf8_lossy(text);
        Refusal::Error(format!(
            "ttl: {shown} is not a number of seconds from 0.001 to 86400"
        ))
    };
    seconds.and_then(time_to_live).ok_or_else(problem)
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
