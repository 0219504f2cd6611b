//! The routes of reservations: `/v1/reserve`, `/v1/commit` and `/v1/renew`.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use earrrl::{HoldId, HoldTerms, RuleError};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::body::{ChargeBody, KeyText, amount};
use super::body::{Check, CostPairs, JsonObject, JsonText, NamedCharge, Pairs, WantedDecision};
use super::request::{ServerState, parse, read};
use crate::config::access::{Access, Scope};
use crate::protocol::response;
use crate::protocol::response::Problem;
use crate::server::Server;
use crate::service::ask::Ask;
use crate::service::attributes::{Attributes, bytes};
use crate::service::error::AskError;
use crate::service::reserve::{ActualCosts, Reserved, time_to_live, with_id};

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
        let Self {
            rule,
            key,
            key_b64,
            cost,
            rules,
            attributes,
            ttl,
            at_most,
            reservation,
        } = self;
        let mut terms = HoldTerms::default();
        if let Some(ttl) = ttl {
            terms = terms.ttl(seconds(ttl)?);
        }
        if at_most {
            terms = terms.at_most();
        }
        if let Some(id) = reservation {
            terms = with_id(terms, &id.0)?;
        }
        let check = Check {
            rule,
            key,
            key_b64,
            cost,
            rules,
            attributes,
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
    let response = decide(&server, &access, wanted).await?;
    server
        .service
        .metrics
        .http_request
        .record(started.elapsed());
    Ok(response)
}

async fn decide(
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
            let pairs = pairs.into_iter().map(|(name, value)| (name, bytes(value)));
            let request = Attributes::named(pairs, &rules.reading)?;
            let reserved = service.reserve_matching(&rules, &request, terms).await?;
            return Ok(respond(&reserved, true));
        }
    };
    let asks: Vec<Ask<'_>> = list
        .iter()
        .map(|named| {
            let rule = rules.named(named.rule.as_bytes())?;
            access.permit_rule(&rule.name)?;
            Ok(named.ask(rule))
        })
        .collect::<Result<_, Problem>>()?;
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
