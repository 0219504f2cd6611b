//! The routes that decide: `/v1/check`, `/v1/peek`, `/v1/charge`, `/v1/check/batch`, and `/v1/refund`; and those of
//! reservations: `/v1/reserve`, `/v1/commit` and `/v1/renew`.
//!
//! The checks before an answer are at the end: the token must grant the required access, and the body must be JSON of
//! bounded length.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use earrrl::{HoldId, HoldTerms, Mode, RuleError};
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::body::{
    self, BatchBody, ChargeBody, Check, CostPairs, JsonObject, JsonText, KeyText, MAX_BATCH,
    NamedCharge, Pairs, Refund, WantedDecision, amount,
};
use crate::config::access::{Access, Scope};
use crate::protocol::bearer::authorize;
use crate::protocol::response::{self, AnswerStatus, GONE, Problem};
use crate::server::Server;
use crate::service::answer::Answer;
use crate::service::ask::Manner;
use crate::service::attributes::{Attributes, bytes};
use crate::service::error::AskError;
use crate::service::reserve::{ActualCosts, Reserved, time_to_live, with_id};
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
                let request = attributes(pairs, &rules)?;
                let answer = server.service.ask_matching(&rules, &request, manner).await;
                Ok(then(&answer.judged()?, true))
            })
            .await
        }
    }
}

fn attributes<'a>(
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    rules: &ActiveRules,
) -> Result<Attributes<'a>, AskError> {
    let pairs = pairs.into_iter().map(|(name, value)| (name, bytes(value)));
    let request = Attributes::named(pairs, &rules.reading)?;
    rules.log_unread(request.names());
    Ok(request)
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
            let answers = together.map(async |check| {
                let mut answer = Vec::with_capacity(256);
                decide_into(&server, &access, check, &mut answer).await;
                answer
            });
            for answer in join_all(answers).await {
                out.extend_from_slice(&answer);
            }
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

/// The body of a request to `/v1/reserve`: the fields of a check, and the terms.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReserveBody<'a> {
    #[serde(borrow)]
    rule: Option<JsonText<'a>>,
    key: Option<KeyText<'a>>,
    key_b64: Option<JsonText<'a>>,
    cost: Option<&'a RawValue>,
    rules: Option<Vec<JsonObject<ChargeBody<'a>>>>,
    attributes: Option<Pairs<'a>>,
    ttl: Option<&'a RawValue>,
    #[serde(default)]
    at_most: bool,
    reservation: Option<JsonText<'a>>,
}

/// A request for a reservation: the charges and the terms.
type Wanted<'a> = (WantedDecision<'a>, HoldTerms);

impl<'a> ReserveBody<'a> {
    /// Returns the charges and the terms.
    fn wanted(self) -> Result<Wanted<'a>, AskError> {
        let mut terms = HoldTerms::default();
        if let Some(ttl) = self.ttl {
            terms = terms.ttl(seconds(ttl)?);
        }
        if self.at_most {
            terms = terms.at_most();
        }
        if let Some(id) = self.reservation {
            terms = with_id(terms, &id.0)?;
        }
        let check = Check {
            rule: self.rule,
            key: self.key,
            key_b64: self.key_b64,
            cost: self.cost,
            rules: self.rules,
            attributes: self.attributes,
        };
        Ok((check.wanted()?, terms))
    }
}

/// The body of a request to `/v1/commit`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommitBody<'a> {
    #[serde(borrow)]
    reservation: JsonText<'a>,
    cost: Option<&'a RawValue>,
    costs: Option<CostPairs<'a>>,
}

/// The body of a request to `/v1/renew`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewBody<'a> {
    #[serde(borrow)]
    reservation: JsonText<'a>,
    ttl: Option<&'a RawValue>,
}

/// Parses a time to live in seconds.
fn seconds(text: &RawValue) -> Result<Duration, AskError> {
    time_to_live(text.get(), Some(amount("ttl", text)?))
}

/// Parses an id. A text that is no id is that of no reservation.
fn parse_id(text: &JsonText<'_>) -> Result<HoldId, Problem> {
    let unknown = |error: RuleError| Problem::new(StatusCode::NOT_FOUND, error.to_string());
    text.0.parse().map_err(unknown)
}

pub(super) async fn reserve(
    State(server): ServerState,
    request: Request,
) -> Result<Response, Problem> {
    let (access, body) = read(&server, request, Scope::Check).await?;
    let started = Instant::now();
    let wanted = parse::<ReserveBody<'_>>(&server, &body)?.wanted()?;
    let response = hold(&server, &access, wanted).await?;
    server
        .service
        .metrics
        .http_request
        .record(started.elapsed());
    Ok(response)
}

async fn hold(
    server: &Server,
    access: &Access,
    (wanted, terms): Wanted<'_>,
) -> Result<Response, Problem> {
    let rules = server.service.rules();
    let service = &server.service;
    let respond = |reserved: &Reserved<'_>, several| {
        response::respond_reserved(reserved, several, server.config.x_ratelimit_headers)
    };
    let several = !matches!(wanted, WantedDecision::One(_));
    let list: Vec<NamedCharge<'_>> = match wanted {
        WantedDecision::One(named) => vec![named],
        WantedDecision::Several(list) => list,
        WantedDecision::Matching(pairs) => {
            access.permit_all_rules()?;
            let request = attributes(pairs, &rules)?;
            let reserved = service.reserve_matching(&rules, &request, terms).await?;
            return Ok(respond(&reserved, true));
        }
    };
    let mut asks = Vec::with_capacity(list.len());
    for named in &list {
        let rule = rules.named(named.rule.as_bytes())?;
        access.permit_rule(&rule.name)?;
        asks.push(named.ask(rule));
    }
    let reserved = service.reserve(&asks, terms, true).await?;
    Ok(respond(&reserved, several))
}

pub(super) async fn commit(
    State(server): ServerState,
    request: Request,
) -> Result<Response, Problem> {
    // The id cannot be guessed, so it permits the commit under the rules of the reservation.
    let (_, body) = read(&server, request, Scope::Check).await?;
    let CommitBody {
        reservation,
        cost,
        costs,
    } = parse(&server, &body)?;
    let id = parse_id(&reservation)?;
    let by_rule: Vec<(Cow<'_, str>, _)>;
    let costs = match (cost, costs) {
        (None, Some(costs)) => {
            by_rule = costs.0;
            ActualCosts::ByRule(
                by_rule
                    .iter()
                    .map(|(name, cost)| (&**name, *cost))
                    .collect(),
            )
        }
        (cost, None) => ActualCosts::All(cost.map(|cost| amount("cost", cost)).transpose()?),
        (Some(_), Some(_)) => {
            return Err(AskError::Invalid("expected one of: cost, costs".to_owned()).into());
        }
    };
    let rules = server.service.rules();
    let (answer, repeated) = server.service.commit(&rules, id, &costs).await?;
    Ok(response::respond_committed(&answer, repeated))
}

pub(super) async fn renew(
    State(server): ServerState,
    request: Request,
) -> Result<StatusCode, Problem> {
    let (_, body) = read(&server, request, Scope::Check).await?;
    let RenewBody { reservation, ttl } = parse(&server, &body)?;
    let ttl = ttl
        .map(seconds)
        .transpose()?
        .unwrap_or(HoldTerms::default().ttl);
    server.service.renew(parse_id(&reservation)?, ttl).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) type ServerState = State<Arc<Server>>;

/// Returns the body of a request whose token permits the operation, and the access that the token
/// grants. A body that is announced as too long is refused before any of it is read. The request must have the content
/// type of JSON, which a web page cannot send to another site without that site's consent (CORS).
pub(super) async fn read(
    server: &Server,
    request: Request,
    needed: Scope,
) -> Result<(Access, Bytes), Problem> {
    let access = authorize(server, request.headers(), needed)?;
    let kind = request
        .headers()
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    if !essence
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
    {
        let detail = "expected Content-Type: application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let most = server.config.max_body;
    let too_long = |detail| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
    let announced = request.body().size_hint().lower();
    if announced > most as u64 {
        return Err(too_long(format!("{announced} bytes; at most {most}")));
    }
    let body = Limited::new(request.into_body(), most).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => too_long(format!("more than {most} bytes")),
        false => broken(server, &*error),
    });
    Ok((access, body?.to_bytes()))
}

/// Returns the error for a body that ended early: its chunks are malformed, or the client has
/// disconnected.
fn broken(server: &Server, error: &(dyn std::error::Error + 'static)) -> Problem {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut kinds = causes.filter_map(|error| Some(error.downcast_ref::<io::Error>()?.kind()));
    let malformed = [io::ErrorKind::InvalidInput, io::ErrorKind::InvalidData];
    if kinds.any(|kind| malformed.contains(&kind)) {
        server.service.metrics.malformed.increment();
        return Problem::new(StatusCode::BAD_REQUEST, "malformed chunks");
    }
    let gone = StatusCode::from_u16(GONE).unwrap_or(StatusCode::BAD_REQUEST);
    Problem::new(gone, "no whole body")
}

/// Parses a request's body as a JSON object.
pub(super) fn parse<'a, T: Deserialize<'a>>(server: &Server, body: &'a [u8]) -> Result<T, Problem> {
    let parsed = serde_json::from_slice::<JsonObject<T>>(body);
    parsed.map(|object| object.0).map_err(|error| {
        server.service.metrics.malformed.increment();
        Problem::new(
            StatusCode::BAD_REQUEST,
            format!("JSON: {}", body::shown(&error)),
        )
    })
}
