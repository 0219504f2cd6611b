//! The commands that ask and change: `CL.THROTTLE` and `EARRRL.*`.

use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use earrrl::table::KeyHash;
use earrrl::{Brief, Cost, Decision, MAX_CHARGES, Mode, Nanos, Outcome, Places, Wait};

use super::codec::Request;
use super::question::Question;
use super::refusal::Refusal;
use super::reply::Writer;
use super::session::Session;
use crate::config::access::Access;
use crate::engine::throttle::{Call, Throttled};
use crate::protocol::seconds::SecondsText;
use crate::service::ask::{Answer, Ask};
use crate::service::attributes::{Attributes, MAX_ATTRIBUTES};
use crate::service::error::AskError;
use crate::service::rules::{ActiveRule, ActiveRules};

/// `CL.THROTTLE key max_burst count period [quantity]`.
#[inline]
pub(super) fn throttle(
    session: &Session,
    request: Request<'_>,
    hash: Option<KeyHash>,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    let (key, call) = parse_throttle(session, request)?;
    let throttle = &session.server.service.engine().throttle;
    let throttled = throttle.throttle(hash.unwrap_or_else(|| throttle.hash(key)), call);
    count(session, call, throttled);
    write_throttled(throttled, reply);
    Ok(())
}

/// The same, where the state may be shared with other servers.
pub(super) async fn throttle_shared(
    session: &Session,
    request: Request<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let (key, call) = parse_throttle(session, request)?;
    let throttled = session.server.service.throttle(key, call).await.map_err(refusal)?;
    count(session, call, throttled);
    write_throttled(throttled, &mut Writer::new(out, session.version));
    Ok(())
}

/// Begins to fetch what a question of one key is about. The hash of the key.
#[inline]
pub(super) fn prefetch(
    session: &Session,
    question: Question,
    request: Request<'_>,
    rules: &ActiveRules,
) -> Option<KeyHash> {
    let service = &session.server.service;
    session.may(Access::Ask).ok()?;
    match (question, request.word(1), request.word(2)) {
        (Question::Throttle, Some(key), _) => Some(service.engine().throttle.prefetch(key)),
        (_, Some(name), Some(key)) if matches!(request.len(), 3 | 5) => {
            service.prefetch(remembered(session, rules, name)?, key)
        }
        _ => None,
    }
}

#[inline]
fn parse_throttle<'a>(
    session: &Session,
    request: Request<'a>,
) -> Result<(&'a [u8], Call), Refusal> {
    session.may(Access::Ask)?;
    let (5..=6, Some(key)) = (request.len(), request.word(1)) else {
        return Err(Refusal::WordCount);
    };
    let number = |place, name| match request.word(place) {
        Some(text) => integer(text).ok_or_else(|| not_whole(name)),
        None => Ok(1),
    };
    let (max_burst, count) = (number(2, "max_burst")?, number(3, "count")?);
    let (period, quantity) = (number(4, "period")?, number(5, "quantity")?);
    let call = Call::new(max_burst, count, period, quantity)
        .map_err(|error| Refusal::Error(error.to_string()))?;
    Ok((key, call))
}

#[inline]
fn count(session: &Session, call: Call, throttled: Throttled) {
    if !call.only_asks() {
        let outcome = if throttled.limited { Outcome::Deny } else { Outcome::Allow };
        session.server.service.metrics.throttle.count(outcome);
    }
}

#[inline]
fn write_throttled(throttled: Throttled, reply: &mut Writer<'_>) {
    reply.array(5);
    reply.integer(throttled.limited.into());
    reply.integer(throttled.limit);
    reply.integer(throttled.remaining);
    reply.integer(throttled.retry_after);
    reply.integer(throttled.reset_after);
}

/// A decimal integer as Redis takes it: no sign but a minus, no spaces.
#[inline]
fn integer(text: &[u8]) -> Option<i64> {
    // Up to 18 digits can't overflow; nearly all numbers are such.
    if matches!(text.len(), 1..=18) && text.iter().all(u8::is_ascii_digit) {
        return Some(text.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')));
    }
    if text.first() == Some(&b'+') {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cold]
fn not_whole(name: &str) -> Refusal {
    Refusal::Error(format!("{name}: expected a whole number"))
}

/// `EARRRL.CHECK rule key [COST c] [AND rule key [COST c] …]`, and the same with `EARRRL.PEEK`.
#[inline]
pub(super) async fn ask(
    session: &Session,
    request: Request<'_>,
    rules: &ActiveRules,
    (mode, hash): (Mode, Option<KeyHash>),
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    session.may(Access::Ask)?;
    let cost = match (request.len(), request.word(3), request.word(4)) {
        (3, ..) => None,
        (5, Some(word), Some(text)) if word.eq_ignore_ascii_case(b"COST") => Some(cost(text)?),
        // Boxed, so that what is seldom asked takes no room in every connection.
        _ => return Box::pin(ask_several(session, request, rules, mode, out)).await,
    };
    let (Some(name), Some(key)) = (request.word(1), request.word(2)) else {
        return Err(Refusal::WordCount);
    };
    let Some(rule) = remembered(session, rules, name) else {
        return Box::pin(ask_inline(session, (name, key, cost), mode, out)).await;
    };
    let answer = session.server.service.ask_hashed(Ask { rule, key, cost }, hash, mode).await;
    write_answer(&answer.map_err(refusal)?, false, &mut Writer::new(out, session.version));
    Ok(())
}

/// `EARRRL.ALLOW rule key [COST c]`: a check whose reply is three integers: 1 or 0 for allowed, the
/// remaining quota, and the milliseconds to wait, -1 for ever.
#[inline]
pub(super) async fn allow(
    session: &Session,
    request: Request<'_>,
    rules: &ActiveRules,
    hash: Option<KeyHash>,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    session.may(Access::Ask)?;
    let cost = match (request.len(), request.word(3), request.word(4)) {
        (3, ..) => None,
        (5, Some(word), Some(text)) if word.eq_ignore_ascii_case(b"COST") => Some(cost(text)?),
        _ => return Err(Refusal::WordCount),
    };
    let (Some(name), Some(key)) = (request.word(1), request.word(2)) else {
        return Err(Refusal::WordCount);
    };
    let rule = remembered(session, rules, name).ok_or_else(|| refusal(AskError::UnknownRule))?;
    let told = session.server.service.check(Ask { rule, key, cost }, hash).await;
    write_brief(told.map_err(refusal)?, &mut Writer::new(out, session.version));
    Ok(())
}

#[inline]
fn write_brief(brief: Option<Brief>, reply: &mut Writer<'_>) {
    let Some(brief) = brief else {
        // The rule leaves this client alone.
        return reply.raw(b"*3\r\n:1\r\n:-1\r\n:0\r\n");
    };
    reply.array(3);
    reply.integer(brief.is_allowed().into());
    reply.integer(i64::try_from(brief.remaining).unwrap_or(i64::MAX));
    reply.integer(brief.wait.duration().map_or(-1, whole_millis));
}

/// Rounded up.
#[inline]
fn whole_millis(wait: Duration) -> i64 {
    i64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// `EARRRL.CHECKATTR name value [name value …]`: every rule that matches these attributes, as
/// `attributes` of `POST /v1/check`.
pub(super) async fn check_attributes(
    session: &Session,
    request: Request<'_>,
    rules: &ActiveRules,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    session.may(Access::Ask)?;
    let count = request.len() / 2;
    if request.len().is_multiple_of(2) || count == 0 {
        return Err(Refusal::WordCount);
    }
    if count > MAX_ATTRIBUTES {
        return Err(Refusal::Error(format!("attributes: {count}; at most {MAX_ATTRIBUTES}")));
    }
    let word = |place: usize| request.word(place).unwrap_or_default();
    let name = |place: usize| {
        let name = std::str::from_utf8(word(place)).map(Cow::Borrowed);
        name.map_err(|_| Refusal::Error("attributes: expected a name in UTF-8".to_owned()))
    };
    let pairs = (0..count).map(|pair| Ok((name(2 * pair + 1)?, word(2 * pair + 2).into())));
    let attributes = Attributes::new(pairs.collect::<Result<Vec<_>, _>>()?, &rules.reading);
    let service = &session.server.service;
    let answer = service.ask_matching(rules, &attributes, Mode::Check.into()).await;
    let answer = answer.judged().map_err(refusal)?;
    write_matching(&answer, &mut Writer::new(out, session.version));
    Ok(())
}

/// The decision, and which rules it comes from.
fn write_matching(answer: &Answer<'_>, reply: &mut Writer<'_>) {
    reply.map(10);
    write_figures(answer.decision.as_ref(), reply);
    reply.bulk(b"rule");
    match answer.rule() {
        Some((rule, _)) => reply.bulk(rule.name.as_bytes()),
        None => reply.nil(),
    }
    reply.bulk(b"over");
    let over = answer.decision.as_ref().map_or(Places::NONE, |decision| decision.over);
    let names = answer.charged.iter().enumerate().filter(|(place, _)| over.contains(*place));
    let names: Vec<&str> = names.map(|(_, (rule, _))| &*rule.name).collect();
    reply.array(names.len());
    names.iter().for_each(|name| reply.bulk(name.as_bytes()));
}

/// Returns the rule of this name, and looks first at the index of the client's last rule.
#[inline]
fn remembered<'r>(
    session: &Session,
    rules: &'r ActiveRules,
    name: &[u8],
) -> Option<&'r ActiveRule> {
    if let Some(rule) = rules.at(session.last_rule.load(Relaxed), name) {
        return Some(rule);
    }
    let place = rules.position(name)?;
    session.last_rule.store(place, Relaxed);
    rules.at(place, name)
}

async fn ask_several(
    session: &Session,
    request: Request<'_>,
    rules: &ActiveRules,
    mode: Mode,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let mut asks = Vec::new();
    for (name, key, cost) in parse_asks(request)? {
        let rule = rules.get(name).ok_or_else(|| refusal(AskError::UnknownRule))?;
        asks.push(Ask { rule, key, cost });
    }
    let answer = session.server.service.ask_all(&asks, mode).await.map_err(refusal)?;
    write_answer(&answer, true, &mut Writer::new(out, session.version));
    Ok(())
}

/// Asks a rule that came as text.
async fn ask_inline(
    session: &Session,
    (name, key, cost): Asked<'_>,
    mode: Mode,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let text = std::str::from_utf8(name).unwrap_or_default();
    if !text.contains(' ') {
        return Err(refusal(AskError::UnknownRule));
    }
    let service = &session.server.service;
    let rule = service.inline_rule(text).map_err(refusal)?;
    let answer = service.ask(Ask { rule: &rule, key, cost }, mode).await.map_err(refusal)?;
    write_answer(&answer, false, &mut Writer::new(out, session.version));
    Ok(())
}

type Asked<'a> = (&'a [u8], &'a [u8], Option<Cost>);

/// `rule key [COST c] [AND rule key [COST c] …]`.
fn parse_asks(request: Request<'_>) -> Result<Vec<Asked<'_>>, Refusal> {
    let mut words = request.words().skip(1).peekable();
    let mut asks = Vec::new();
    loop {
        let (Some(rule), Some(key)) = (words.next(), words.next()) else {
            return Err(Refusal::WordCount);
        };
        let cost = match words.next_if(|word| word.eq_ignore_ascii_case(b"COST")) {
            Some(_) => Some(cost(words.next().ok_or(Refusal::WordCount)?)?),
            None => None,
        };
        asks.push((rule, key, cost));
        match words.next() {
            None => return Ok(asks),
            Some(word) if word.eq_ignore_ascii_case(b"AND") && asks.len() < MAX_CHARGES => {}
            Some(_) => return Err(Refusal::Error("expected COST, AND or nothing more".to_owned())),
        }
    }
}

fn cost(text: &[u8]) -> Result<Cost, Refusal> {
    let cost = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    cost.ok_or_else(|| {
        Refusal::Error("cost: expected a number from 0 to 1e18, a multiple of 1e-9".to_owned())
    })
}

/// `EARRRL.REFUND rule key cost [T0 seconds]`.
pub(super) async fn refund(
    session: &Session,
    request: Request<'_>,
    rules: &ActiveRules,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Access::Change)?;
    let words = (request.word(1), request.word(2), request.word(3));
    let (Some(name), Some(key), Some(amount)) = words else { return Err(Refusal::WordCount) };
    let charged_at = match (request.len(), request.word(4), request.word(5)) {
        (4, ..) => None,
        (6, Some(word), Some(time)) if word.eq_ignore_ascii_case(b"T0") => Some(instant(time)?),
        _ => return Err(Refusal::WordCount),
    };
    let rule = rules.get(name).ok_or_else(|| refusal(AskError::UnknownRule))?;
    let ask = Ask { rule, key, cost: Some(cost(amount)?) };
    session.server.service.refund(ask, charged_at).await.map_err(refusal)?;
    reply.simple("OK");
    Ok(())
}

/// Seconds since the Unix epoch. A cost's decimals are exact to 1e-9, just as nanoseconds are.
fn instant(text: &[u8]) -> Result<Nanos, Refusal> {
    let seconds: Option<Cost> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let nanos = seconds.and_then(|seconds| u64::try_from(seconds.billionths()).ok());
    nanos.map(Nanos::new).ok_or_else(|| {
        Refusal::Error("t0: expected seconds since the Unix epoch, to the nanosecond".to_owned())
    })
}

/// `EARRRL.RESET rule key`.
pub(super) async fn reset(
    session: &Session,
    request: Request<'_>,
    rules: &ActiveRules,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Access::Change)?;
    let (3, Some(name), Some(key)) = (request.len(), request.word(1), request.word(2)) else {
        return Err(Refusal::WordCount);
    };
    let rule = rules.get(name).ok_or_else(|| refusal(AskError::UnknownRule))?;
    session.server.service.reset(rule, key).await.map_err(refusal)?;
    reply.simple("OK");
    Ok(())
}

/// `EARRRL.RULES`: each rule's name and text.
pub(super) fn rules(
    session: &Session,
    rules: &ActiveRules,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Access::Ask)?;
    reply.map(rules.len());
    for rule in rules.iter() {
        reply.bulk(rule.name.as_bytes());
        reply.bulk(rule.own.rule.to_string().as_bytes());
    }
    Ok(())
}

#[cold]
fn refusal(error: AskError) -> Refusal {
    Refusal::Error(error.to_string())
}

/// The decision as pairs. Of several charges, also which one the figures are of, and
/// which were over their limit.
#[inline]
fn write_answer(answer: &Answer<'_>, several: bool, reply: &mut Writer<'_>) {
    let several = several && answer.decision.is_some();
    reply.map(if several { 11 } else { 9 });
    let decision = answer.decision.as_ref();
    write_figures(decision, reply);
    if let (true, Some(decision)) = (several, decision) {
        reply.raw(b"$6\r\ncharge\r\n");
        reply.integer(decision.rule as i64);
        reply.raw(b"$4\r\nover\r\n");
        reply.array(decision.over.len());
        for place in decision.over.iter() {
            reply.integer(place as i64);
        }
    }
    write_time(decision, reply);
}

/// Writes the time of the charge, which a refund names. It is sent as text, since a client that
/// parses it as a double would round it.
#[inline]
fn write_time(decision: Option<&Decision>, reply: &mut Writer<'_>) {
    reply.raw(b"$2\r\nt0\r\n");
    match decision {
        Some(decision) => {
            let since = Duration::from_nanos(decision.at.get());
            reply.bulk(SecondsText::default().format(since));
        }
        None => reply.nil(),
    }
}

#[inline]
fn write_figures(decision: Option<&Decision>, reply: &mut Writer<'_>) {
    reply.raw(b"$7\r\nallowed\r\n");
    reply.boolean(decision.is_none_or(|decision| decision.allowed));
    reply.raw(b"$6\r\naction\r\n");
    reply.bulk(decision.map_or(Outcome::Allow, |decision| decision.outcome).name().as_bytes());
    reply.raw(b"$4\r\nrate\r\n");
    optional(reply, decision.and_then(|decision| decision.rate));
    reply.raw(b"$5\r\nlimit\r\n");
    optional(reply, decision.map(|decision| decision.limit));
    reply.raw(b"$9\r\nremaining\r\n");
    match decision {
        Some(decision) => reply.count(decision.remaining),
        None => reply.nil(),
    }
    reply.raw(b"$11\r\nretry_after\r\n");
    match decision.map_or(Wait::NONE, |decision| decision.retry_after) {
        Wait::For(wait) => reply.seconds(wait),
        Wait::Never => reply.nil(),
    }
    reply.raw(b"$11\r\nreset_after\r\n");
    reply.seconds(decision.map(|decision| decision.reset_after).unwrap_or_default());
    reply.raw(b"$5\r\ndelay\r\n");
    reply.seconds(decision.map(|decision| decision.delay).unwrap_or_default());
}

#[inline]
fn optional(reply: &mut Writer<'_>, value: Option<f64>) {
    match value {
        Some(value) => reply.double(value),
        None => reply.nil(),
    }
}
