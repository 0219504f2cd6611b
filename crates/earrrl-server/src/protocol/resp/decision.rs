//! Writes decisions as RESP replies.

use std::time::Duration;

use earrrl::internal::Brief;
use earrrl::{Decision, Outcome, Wait};

use super::reply::Writer;
use crate::engine::throttle::Throttled;
use crate::protocol::response::SecondsText;
use crate::service::answer::Answer;
use crate::service::reserve::Reserved;

/// Writes the reply to `CL.THROTTLE`, the five integers that redis-cell defines.
#[inline]
pub(super) fn write_throttled(throttled: Throttled, reply: &mut Writer<'_>) {
    reply.array(5);
    reply.integer(throttled.limited.into());
    reply.integer(throttled.limit);
    reply.integer(throttled.remaining);
    reply.integer(throttled.retry_after);
    reply.integer(throttled.reset_after);
}

/// Writes the reply to `EARRRL.ALLOW`, three integers: 1 if the request is allowed or else 0, the
/// remaining quota, and the milliseconds until a retry can succeed, or -1 if none can.
#[inline]
pub(super) fn write_brief(brief: Option<Brief>, reply: &mut Writer<'_>) {
    let Some(brief) = brief else {
        // The rule exempts this client, so the request is allowed and has no quota.
        return reply.raw(b"*3\r\n:1\r\n:-1\r\n:0\r\n");
    };
    reply.array(3);
    reply.integer(brief.is_allowed().into());
    reply.integer(i64::try_from(brief.remaining).unwrap_or(i64::MAX));
    reply.integer(brief.wait.duration().map_or(-1, whole_millis));
}

/// Returns a duration in whole milliseconds, rounded up.
#[inline]
fn whole_millis(wait: Duration) -> i64 {
    i64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// Writes the decision on a request's attributes, and the names of the rules that matched them.
pub(super) fn write_matching(answer: &Answer<'_>, reply: &mut Writer<'_>) {
    reply.map(10);
    write_figures(answer.decision.as_ref(), reply);
    let deciding = answer
        .deciding()
        .map(|charged| charged.rule.name.as_bytes());
    reply.entry("rule").optional(deciding, Writer::bulk);
    reply.entry("over").array(answer.over().count());
    answer
        .over()
        .for_each(|(_, rule)| reply.bulk(rule.name.as_bytes()));
}

/// Writes the decision as pairs of names and values. If the request may have `several` charges, two
/// more pairs give the index of the charge that the decision's numbers belong to, and the charges
/// that were over their limit.
#[inline]
pub(super) fn write_answer(answer: &Answer<'_>, several: bool, reply: &mut Writer<'_>) {
    write_pairs(answer, several, 0, reply);
}

/// Writes the decision on a reservation, its id and the granted costs.
pub(super) fn write_reserved(reserved: &Reserved<'_>, several: bool, reply: &mut Writer<'_>) {
    write_pairs(&reserved.answer, several, 2, reply);
    let id = reserved.id.map(|id| id.to_string());
    let id = id.as_deref().map(str::as_bytes);
    reply.entry("reservation").optional(id, Writer::bulk);
    reply.entry("granted");
    let mut granted = reserved.granted.iter().map(|cost| cost.as_f64());
    if several {
        reply.array(granted.len());
        granted.for_each(|cost| reply.double(cost));
    } else {
        reply.optional(granted.next(), Writer::double);
    }
}

/// Writes the figures after a commit, and true if it was a repeated one.
pub(super) fn write_committed(answer: &Answer<'_>, repeated: bool, reply: &mut Writer<'_>) {
    write_pairs(answer, false, 1, reply);
    reply.entry("repeated").boolean(repeated);
}

/// Writes the pairs of a decision, in a map that has `more` pairs, which the caller writes.
#[inline]
fn write_pairs(answer: &Answer<'_>, several: bool, more: usize, reply: &mut Writer<'_>) {
    let several = several && answer.decision.is_some();
    reply.map(more + if several { 11 } else { 9 });
    let decision = answer.decision.as_ref();
    write_figures(decision, reply);
    if let (true, Some(decision)) = (several, decision) {
        reply.raw(b"$6\r\ncharge\r\n");
        reply.integer(decision.rule as i64);
        reply.raw(b"$4\r\nover\r\n");
        reply.array(answer.over().count());
        answer
            .over()
            .for_each(|(place, _)| reply.integer(place as i64));
    }
    write_time(decision, reply);
}

/// Writes the time of the charge, which the client sends back in a refund. The time is sent as
/// text, since a client that parses it as a double would round it.
#[inline]
fn write_time(decision: Option<&Decision>, reply: &mut Writer<'_>) {
    reply.raw(b"$2\r\nt0\r\n");
    reply.optional(decision, |reply, decision| {
        let since = Duration::from_nanos(decision.at.get());
        reply.bulk(SecondsText::default().format(since));
    });
}

#[inline]
fn write_figures(decision: Option<&Decision>, reply: &mut Writer<'_>) {
    reply.raw(b"$7\r\nallowed\r\n");
    reply.boolean(decision.is_none_or(|decision| decision.allowed));
    reply.raw(b"$6\r\naction\r\n");
    reply.bulk(
        decision
            .map_or(Outcome::Allow, |decision| decision.outcome)
            .name()
            .as_bytes(),
    );
    reply.raw(b"$4\r\nrate\r\n");
    reply.optional(decision.and_then(|decision| decision.rate), Writer::double);
    reply.raw(b"$5\r\nlimit\r\n");
    reply.optional(decision.map(|decision| decision.limit), Writer::double);
    reply.raw(b"$9\r\nremaining\r\n");
    let remaining = decision.map(|decision| decision.remaining);
    reply.optional(remaining, Writer::count);
    reply.raw(b"$11\r\nretry_after\r\n");
    let wait = decision.map_or(Wait::NONE, |decision| decision.retry_after);
    reply.optional(wait.duration(), Writer::seconds);
    reply.raw(b"$11\r\nreset_after\r\n");
    reply.seconds(
        decision
            .map(|decision| decision.reset_after)
            .unwrap_or_default(),
    );
    reply.raw(b"$5\r\ndelay\r\n");
    reply.seconds(decision.map(|decision| decision.delay).unwrap_or_default());
}
