//! The commands that decide requests and change the state of clients: `CL.THROTTLE` and `EARRRL.*`.

use std::borrow::Cow;

use earrrl::{Cost, Mode, Nanos, Outcome};

use super::codec::Request;
use super::decision::{write_answer, write_brief, write_matching, write_throttled};
use super::question::{Question, cost, wrong};
use super::refusal::Refusal;
use super::reply::Writer;
use super::session::Session;
use crate::config::access::Scope;
use crate::engine::throttle::{Call, Throttled};
use crate::service::ask::Ask;
use crate::service::attributes::{Attributes, MAX_ATTRIBUTES};
use crate::service::rule::ActiveRule;
use crate::service::rules::ActiveRules;

/// Decides a question, and writes the reply to `out`.
#[inline]
pub(super) async fn answer(
    session: &Session,
    question: &Question<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let service = &session.server.service;
    let version = session.version;
    match question {
        Question::Throttle { key, call, hash } => {
            let throttle = &service.engine().throttle;
            let throttled = match service.engine().waits() {
                true => service.throttle(key, *call).await?,
                false => throttle.throttle(hash.unwrap_or_else(|| throttle.hash(key)), *call),
            };
            count(session, *call, throttled);
            write_throttled(throttled, &mut Writer::new(out, version));
        }
        Question::Ask { ask, mode } => {
            let answer = service.ask(ask, *mode).await?;
            write_answer(&answer, false, &mut Writer::new(out, version));
        }
        Question::Allow(ask) => {
            let brief = service.check(ask).await?;
            write_brief(brief, &mut Writer::new(out, version));
        }
        // The futures of rare questions are boxed, so that they take no memory in every connection.
        Question::Several { asks, mode } => {
            let answer = Box::pin(service.ask_all(asks, *mode)).await?;
            write_answer(&answer, true, &mut Writer::new(out, version));
        }
        Question::Inline(inline) => {
            let ask = inline.ask();
            let answer = Box::pin(service.ask(&ask, inline.mode)).await?;
            write_answer(&answer, false, &mut Writer::new(out, version));
        }
        Question::Refused(refusal) => session.refuse(refusal, out),
    }
    Ok(())
}

#[inline]
fn count(session: &Session, call: Call, throttled: Throttled) {
    if !call.only_asks() {
        let outcome = if throttled.limited {
            Outcome::Deny
        } else {
            Outcome::Allow
        };
        session.server.service.metrics.throttle.count(outcome);
    }
}

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
    let word = |place: usize| request.word(place).unwrap_or_default();
    let name = |place: usize| {
        let name = std::str::from_utf8(word(place)).map(Cow::Borrowed);
        name.map_err(|_| Refusal::Error("attributes: expected a name in UTF-8".to_owned()))
    };
    let pairs = (0..count).map(|pair| Ok((name(2 * pair + 1)?, word(2 * pair + 2).into())));
    let pairs = pairs.collect::<Result<Vec<_>, Refusal>>()?;
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
        deleted += i64::from(session.server.service.delete_throttle(key).await?);
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
