//! Authorization of proxied requests: decides if a proxy may pass a client's request on. Both
//! `/v1/authz` and Envoy's `ext_authz` use it.
//!
//! No request of a client leads to an error response, because proxies pass a request on when its
//! check fails. A request that cannot be read is denied. If one rule fails to give a verdict, the
//! other matching rules decide, or the request is denied (setting `on_error`).

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Instant;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use earrrl::{Mode, Outcome};
use earrrl_tower::address;
use earrrl_tower::problem::CONTENT_TYPE;
use smallvec::SmallVec;

use super::response::Problem;
use super::response::{self, ACTION, Verdict};
use crate::server::Server;
use crate::service::answer::Answer;
use crate::service::ask::Manner;
use crate::service::attributes::{Attributes, bytes};
use crate::service::rules::ActiveRules;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The reason that is reported when a proxied request is denied because memory is short.
pub(super) const NO_MEMORY: &str = "no memory for a request of this size; try a smaller one";

/// A client's request, as the proxy that received it describes it.
#[derive(Debug, Default)]
pub(super) struct ProxiedRequest<'a> {
    pub(super) method: Cow<'a, [u8]>,
    /// The path, with or without the query.
    pub(super) target: Cow<'a, [u8]>,
    pub(super) host: Option<Cow<'a, [u8]>>,
    pub(super) proto: Option<Cow<'a, [u8]>>,
    /// The address of the client: the proxy's peer. For a proxy that names the client in headers,
    /// this is the proxy's own address.
    pub(super) peer: Option<IpAddr>,
}

/// The values of one header, one item for each line, in the order in which the lines were sent.
pub(super) type Lines<'a> = SmallVec<[Cow<'a, [u8]>; 1]>;

/// Decides a proxied request under every rule that matches it, and calls `then` with the verdict
/// and the decision behind it. `lines` returns the values of a header by its name in lower case; it
/// is called only for headers that rules use, for `content-type` and for `x-forwarded-for`. Without a decision before
/// `deadline`, the verdict is that of the rules' `on_error`, or of the engine's policy.
pub(super) async fn decide<'a, T>(
    server: &Server,
    asked: ProxiedRequest<'a>,
    lines: impl Fn(&str) -> Lines<'a>,
    deadline: Option<Instant>,
    then: impl FnOnce(Verdict, &Answer<'_>) -> T,
) -> T {
    let rules = server.service.rules();
    if let Some(header) = rules
        .single_headers
        .iter()
        .find(|header| differ(&lines(header)))
    {
        let why =
            format!("{header}: several values; want one, since it decides which limit counts");
        return then(refuse(rules.deny_status, &why), &Answer::default());
    }
    if server.service.hints.awaits_proxy()
        && let Some(proxy) = asked
            .peer
            .filter(|peer| is_overlooked(*peer, &rules, &lines))
    {
        server.service.hints.overlooked_proxy(proxy);
    }
    let attributes = attributes(&rules, asked, &lines);
    let manner = Manner {
        mode: Mode::Check,
        available: true,
    };
    let answer = server
        .service
        .ask_matching_before(&rules, &attributes, manner, deadline)
        .await;
    let mut verdict = verdict(server, rules.deny_status, &answer);
    let is_grpc = |kind: &Cow<'_, [u8]>| kind.starts_with(b"application/grpc");
    if verdict.status() != StatusCode::OK && lines("content-type").first().is_some_and(is_grpc) {
        // Without this header Envoy would report UNAVAILABLE to a gRPC client, and clients retry
        // that status at once. Status 8 is RESOURCE_EXHAUSTED.
        verdict
            .headers_mut()
            .insert(GRPC_STATUS, HeaderValue::from_static("8"));
    }
    then(verdict, &answer)
}

/// Returns true if `peer` looks like a proxy that is not trusted, and names another client than itself.
fn is_overlooked<'a>(
    peer: IpAddr,
    rules: &ActiveRules,
    lines: &impl Fn(&str) -> Lines<'a>,
) -> bool {
    rules.reading.client_address.overlooks(peer)
        && lines("x-forwarded-for").last().is_some_and(|line| {
            let last = line.rsplit(|byte| *byte == b',').next().unwrap_or_default();
            let last = str::from_utf8(last).ok().and_then(address::parse);
            last.is_some_and(|last| last != address::canonical(peer))
        })
}

/// Returns true if the lines of a header have different values.
fn differ(lines: &Lines<'_>) -> bool {
    lines.windows(2).any(|pair| pair[0] != pair[1])
}

/// Returns the attributes of a proxied request, among them the headers that rules use.
fn attributes<'r, 'a: 'r>(
    rules: &'r ActiveRules,
    asked: ProxiedRequest<'a>,
    lines: impl Fn(&str) -> Lines<'a>,
) -> Attributes<'r> {
    let peer = asked.peer.map(|peer| bytes(address::text(peer).into()));
    let known = [
        ("method", Some(asked.method)),
        ("path", Some(asked.target)),
        ("client", peer),
        ("host", asked.host),
        ("proto", asked.proto),
    ];
    let known = known
        .into_iter()
        .filter_map(|(name, value)| Some((name.into(), value?)));
    let client_header = rules.reading.client_address.header();
    let named = rules.headers.iter().flat_map(|attribute| {
        let name = attribute.strip_prefix("header:").unwrap_or(attribute);
        let lines = if name == client_header {
            joined(lines(name))
        } else {
            lines(name)
        };
        lines
            .into_iter()
            .map(|line| (Cow::from(attribute.as_str()), line))
    });
    Attributes::new(known.chain(named), &rules.reading)
}

/// Returns the verdict on a request, and counts it if it passes although a rule gave no verdict.
fn verdict(server: &Server, deny_status: u16, answer: &Answer<'_>) -> Verdict {
    match &answer.unjudged {
        Some(unjudged) if answer.is_denied_by_error() => refuse(
            deny_status,
            &format!("rule {}: no verdict", unjudged.rule.name),
        ),
        unjudged => {
            if let (Some(unjudged), false) = (unjudged, answer.is_over()) {
                server.service.metrics.unjudged.count(unjudged.reason);
            }
            response::authorize(
                answer,
                status(deny_status),
                server.config.x_ratelimit_headers,
            )
        }
    }
}

/// Joins the values of a header into one, with commas between them. Proxies append addresses to a
/// list either in its last line or in a line of their own, so both forms must be read alike.
fn joined(lines: Lines<'_>) -> Lines<'_> {
    if lines.len() < 2 {
        return lines;
    }
    let list: Cow<'_, [u8]> = lines.join(&b", "[..]).into();
    [list].into_iter().collect()
}

/// Returns the denial of a request for another reason than a limit.
pub(super) fn refuse(deny_status: u16, why: &str) -> Verdict {
    let status = status(deny_status);
    let mut verdict = Verdict::new(Problem::new(status, why).to_json());
    *verdict.status_mut() = status;
    verdict
        .headers_mut()
        .insert(header::CONTENT_TYPE, CONTENT_TYPE);
    verdict
        .headers_mut()
        .insert(ACTION, HeaderValue::from_static(Outcome::Deny.name()));
    verdict
}

fn status(deny_status: u16) -> StatusCode {
    StatusCode::from_u16(deny_status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}
