//! The routes that decide: `/v1/check`, `/v1/peek`, `/v1/charge`, `/v1/check/batch`; and
//! `/v1/refund`.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use earrrl::Mode;
use futures_util::future::join_all;

use super::body::{BatchBody, Check, MAX_BATCH, NamedCharge, Refund, WantedDecision};
use super::request::{ServerState, parse, read};
use crate::config::access::{Access, Scope};
use crate::protocol::response::Problem;
use crate::protocol::response::{self, AnswerStatus};
use crate::server::Server;
use crate::service::answer::Answer;
use crate::service::ask::Manner;
use crate::service::attributes::{Attributes, bytes};
use crate::service::rule::ActiveRule;
use crate::service::rules::ActiveRules;

/// The maximum number of checks of one batch that are in flight at the same time, if the engine
/// waits for Redis. Checks are sent in order, so checks of the same key are also decided in order.
const AT_ONCE: usize = 32;

/// Answers a check, a peek or a charge.
pub(super) async fn ask(
    State(server): ServerState,
    request: Request,
    mode: Mode,
) -> Result<Response, Problem> {
    let server = &*server;
    let status = match mode {
        Mode::Peek => AnswerStatus::Ok,
        Mode::Check | Mode::Charge => AnswerStatus::ByVerdict,
    };
    let (access, body) = read(server, request, mode.into()).await?;
    let started = Instant::now();
    let wanted = parse::<Check<'_>>(server, &body)?.wanted()?;
    let x_rate_limit = server.config.x_ratelimit_headers;
    let respond =
        |answer: &Answer<'_>, several| response::respond(answer, several, status, x_rate_limit);
    let manner = Manner {
        mode,
        available: true,
    };
    let response = decide(server, &access, wanted, manner, respond).await?;
    server
        .service
        .metrics
        .http_request
        .record(started.elapsed());
    Ok(response)
}

/// Decides one check and returns the result of `then`, which is called with the answer. A closure
/// is needed because the answer borrows from the current rules.
async fn decide<T>(
    server: &Server,
    access: &Access,
    wanted: WantedDecision<'_>,
    manner: Manner,
    then: impl FnOnce(&Answer<'_>, bool) -> T,
) -> Result<T, Problem> {
    let rules = server.service.rules();
    match wanted {
        WantedDecision::One(named) => {
            let rule = find(server, access, &rules, &named)?;
            let ask = named.ask(rule);
            Ok(then(&server.service.ask(&ask, manner).await?, false))
        }
        // Nearly all checks name one rule. The other kinds are boxed, so that their futures do not
        // make every check's future larger.
        WantedDecision::Several(list) => {
            Box::pin(decide_several(server, access, &rules, &list, manner, then)).await
        }
        WantedDecision::Matching(pairs) => {
            access.permit_all_rules()?;
            Box::pin(async {
                let pairs = pairs.into_iter().map(|(name, value)| (name, bytes(value)));
                let request = Attributes::named(pairs, &rules.reading)?;
                rules.log_unread(request.names());
                let answer = server.service.ask_matching(&rules, &request, manner).await;
                Ok(then(&answer.judged()?, true))
            })
            .await
        }
    }
}

async fn decide_several<T>(
    server: &Server,
    access: &Access,
    rules: &ActiveRules,
    list: &[NamedCharge<'_>],
    manner: Manner,
    then: impl FnOnce(&Answer<'_>, bool) -> T,
) -> Result<T, Problem> {
    let ask = |named| Ok(NamedCharge::ask(named, find(server, access, rules, named)?));
    let asks = list.iter().map(ask).collect::<Result<Vec<_>, Problem>>()?;
    Ok(then(&server.service.ask_all(&asks, manner).await?, true))
}

/// Returns the rule that a charge names, if the client's token permits it: a configured rule, or one whose text is in
/// the request itself.
fn find<'a>(
    server: &Server,
    access: &Access,
    rules: &'a ActiveRules,
    named: &NamedCharge<'_>,
) -> Result<&'a ActiveRule, Problem> {
    match rules.get(named.rule.as_bytes()) {
        Some(rule) => {
            access.permit_rule(&rule.name)?;
            Ok(rule)
        }
        None => Ok(server
            .service
            .inline_rule::<Problem>(access, named.rule.as_bytes())?),
    }
}

pub(super) async fn batch(
    State(server): ServerState,
    request: Request,
) -> Result<Response, Problem> {
    let (access, body) = read(&server, request, Scope::Check).await?;
    let batch: BatchBody<'_> = parse(&server, &body)?;
    if batch.checks.len() > MAX_BATCH {
        let detail = format!("checks: {}; at most {MAX_BATCH}", batch.checks.len());
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let mut out = Vec::with_capacity(256 * batch.checks.len() + 16);
    out.extend_from_slice(b"{\"decisions\":[");
    let mut checks = batch.checks.into_iter().map(|check| check.0);
    if server.service.engine().waits() {
        while let Some(first) = checks.next() {
            let together = [first].into_iter().chain(checks.by_ref().take(AT_ONCE - 1));
            let answers: Vec<_> = together
                .map(|check| decide_apart(&server, &access, check))
                .collect();
            join_all(answers)
                .await
                .iter()
                .for_each(|answer| out.extend_from_slice(answer));
        }
    } else {
        for check in checks {
            decide_into(&server, &access, check, &mut out).await;
        }
    }
    out.pop_if(|byte| *byte == b',');
    out.extend_from_slice(b"]}");
    Ok(([(header::CONTENT_TYPE, "application/json")], out).into_response())
}

/// Appends the answer to one check of a batch to `out`, followed by a comma.
async fn decide_into(server: &Server, access: &Access, check: Check<'_>, out: &mut Vec<u8>) {
    let write = |answer: &Answer<'_>, several| response::write_object(answer, several, out);
    let decided = match check.wanted() {
        Ok(wanted) => decide(server, access, wanted, Mode::Check.into(), write).await,
        Err(error) => Err(error.into()),
    };
    if let Err(problem) = decided {
        out.extend_from_slice(&problem.to_json());
    }
    out.push(b',');
}

async fn decide_apart(server: &Server, access: &Access, check: Check<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    decide_into(server, access, check, &mut out).await;
    out
}

pub(super) async fn refund(
    State(server): ServerState,
    request: Request,
) -> Result<StatusCode, Problem> {
    let (access, body) = read(&server, request, Scope::Refund).await?;
    let refund: Refund<'_> = parse(&server, &body)?;
    let charged_at = refund.charged_at()?;
    let named = refund.named()?;
    let rules = server.service.rules();
    let rule = find(&server, &access, &rules, &named)?;
    let ask = named.ask(rule);
    server.service.refund(&ask, charged_at).await?;
    Ok(StatusCode::NO_CONTENT)
}
