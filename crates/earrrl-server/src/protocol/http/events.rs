//! `GET /v1/events`: the clients that cross their limit, are forgiven, are reset or get overrides, as a stream for
//! other tools; and the dashboard, one page of the admin listener, with the stream that keeps it current.
//!
//! Streams stay open until the client leaves, its token is revoked or the server stops.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use earrrl::{Nanos, Outcome};
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use super::check::ServerState;
use super::top::{
    client, distribution, insert_key, invalid, parameter, permitted_rule, seconds_since_epoch,
};
use crate::config::access::{Access, Scope};
use crate::protocol::bearer::authorize;
use crate::protocol::response::Problem;
use crate::server::Server;
use crate::service::changes::{ClientEvent, EventSource, RuleEvent};
use crate::service::error::AskError;
use crate::service::names::{ClientNotice, ENVOY, Notice};
use crate::service::reports::SurveyedClient;

/// The number of steps without an event after which a stream shows that it is alive.
const SILENT_STEPS: u32 = 15;

/// The form of a stream.
#[derive(Clone, Copy)]
enum EventFormat {
    /// Server-sent events.
    Sse,
    /// One JSON object a line.
    JsonLines,
}

/// A client that reads the stream, and what it knows.
struct Subscriber {
    subscription: Subscription,
    /// The only rule whose events are wanted.
    only: Option<String>,
    form: EventFormat,
    source: EventSource,
    silent: u32,
}

/// `GET /v1/events?rule=NAME&format=jsonl`: sends events of a rule, or of all permitted rules.
pub(super) async fn events(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let access = authorize(&server, &headers, Scope::Top)?;
    let only = parameter(&uri, "rule").map(Cow::into_owned);
    if let Some(rule) = &only {
        if rule != ENVOY {
            server.service.rules().named(rule.as_bytes())?;
        }
        access.permit_rule(rule)?;
    }
    let form = EventFormat::of(&uri)?;
    if server.config.names.options.capacity == 0 {
        return Err(invalid(
            "[server.names] capacity is 0, and events are about named clients",
        ));
    }
    let source = EventSource::new(&server.service);
    let subscription = Subscription::open(server, headers)?;
    let mut subscriber = Subscriber {
        subscription,
        only,
        form,
        source,
        silent: 0,
    };
    let first = subscriber.changes(&access);
    let first = stream::iter(Some(first).filter(|first| !first.is_empty()));
    let events = first.chain(stream::unfold(subscriber, next));
    Ok(respond(form.content_type(), events))
}

async fn next(mut subscriber: Subscriber) -> Option<(Bytes, Subscriber)> {
    loop {
        let access = subscriber.subscription.step().await?;
        let mut events = subscriber.changes(&access);
        subscriber.silent += 1;
        if events.is_empty() && subscriber.silent >= SILENT_STEPS {
            events = Bytes::from_static(subscriber.form.sign_of_life().as_bytes());
        }
        if !events.is_empty() {
            subscriber.silent = 0;
            return Some((events, subscriber));
        }
    }
}

impl Subscriber {
    /// Returns the events since the step before.
    fn changes(&mut self, access: &Access) -> Bytes {
        let server = &self.subscription.server;
        let permitted = |rule: &str| {
            self.only.as_ref().is_none_or(|only| only == rule) && access.permit_rule(rule).is_ok()
        };
        let events = self.source.step(&server.service, permitted);
        self.form.text(events, server.service.now()).into()
    }
}

/// Returns an event as JSON.
fn described(event: RuleEvent, now: Nanos) -> Value {
    match event {
        RuleEvent::Changed(event) => changed(event, now),
        RuleEvent::Noticed(notice) => noticed(&notice, now),
    }
}

fn changed(event: ClientEvent, now: Nanos) -> Value {
    let figures = event.name.as_top(event.fingerprint, now);
    let mut value = client(&SurveyedClient {
        figures,
        name: Some(event.name),
    });
    value["event"] = event.change.name().into();
    value["rule"] = (*event.rule).into();
    value["at"] = seconds_since_epoch(now).into();
    value
}

fn noticed(ClientNotice { client, what }: &ClientNotice, now: Nanos) -> Value {
    let mut value = json!({
        "event": "reset",
        "rule": client.rule,
        "at": seconds_since_epoch(now),
        "fingerprint": format!("{:010x}", client.fingerprint),
        "key_is_cut": client.is_cut,
    });
    if let Notice::Override { limit, expires, by } = what {
        value["event"] = "override".into();
        value["limit"] = limit.clone().into();
        value["expires"] = (*expires).into();
        value["by"] = by.clone().into();
    }
    insert_key(&mut value, &client.name);
    value
}

impl EventFormat {
    fn of(uri: &Uri) -> Result<Self, Problem> {
        match parameter(uri, "format").as_deref() {
            None | Some("sse") => Ok(Self::Sse),
            Some("jsonl") => Ok(Self::JsonLines),
            Some(_) => Err(invalid("format: expected sse or jsonl")),
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Sse => "text/event-stream",
            Self::JsonLines => "application/x-ndjson",
        }
    }

    /// Returns what a reader ignores, but a connection that is broken does not carry.
    fn sign_of_life(self) -> &'static str {
        match self {
            Self::Sse => ":\n\n",
            Self::JsonLines => "\n",
        }
    }

    /// Returns events in this form.
    fn text(self, events: Vec<RuleEvent>, now: Nanos) -> String {
        let mut text = String::new();
        for event in events {
            self.write(&mut text, &described(event, now));
        }
        text
    }

    fn write(self, out: &mut String, event: &Value) {
        let json = ascii(&event.to_string());
        // Writing to a string does not fail.
        let _ = match (self, event["event"].as_str()) {
            (Self::Sse, Some(name)) => write!(out, "event: {name}\ndata: {json}\n\n"),
            _ => writeln!(out, "{json}"),
        };
    }
}

/// Escapes all characters of a JSON text that are not visible ASCII, since events are shown in terminals and written to
/// logs.
fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if matches!(character, ' '..='~') {
            out.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

/// The time between two steps of a stream.
const INTERVAL: Duration = Duration::from_secs(1);

/// The connection of a stream: the client's token, and its place among the streams that may be open.
struct Subscription {
    /// The server.
    server: Arc<Server>,
    headers: HeaderMap,
    _place: OwnedSemaphorePermit,
}

impl Subscription {
    /// Takes a place for a stream of the client that sent `headers`.
    pub(super) fn open(server: Arc<Server>, headers: HeaderMap) -> Result<Self, Problem> {
        let place = Arc::clone(&server.watchers)
            .try_acquire_owned()
            .map_err(|_| {
                Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "too many streams are open already",
                )
            })?;
        Ok(Self {
            server,
            headers,
            _place: place,
        })
    }

    /// Waits for the next step; returns `None` if the stream is to end.
    pub(super) async fn step(&self) -> Option<Access> {
        sleep(INTERVAL).await;
        if self.server.is_stopping() || self.server.connections.are_stopping() {
            return None;
        }
        authorize(&self.server, &self.headers, Scope::Top).ok()
    }
}

/// Returns the response whose body is a stream.
pub(super) fn respond(
    kind: &'static str,
    stream: impl Stream<Item = Bytes> + Send + 'static,
) -> Response {
    let mut response = Body::from_stream(stream.map(Ok::<_, Infallible>)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The number of clients in an event.
const CLIENTS: usize = 20;
/// The page may load its own files and connect to its own server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /` of the admin listener. The page contains the fact that tokens are needed, since a browser would log the
/// refusal of a request without one as an error.
pub(super) async fn page(State(server): ServerState) -> Response {
    let body = if server.tokens().any() {
        "<body data-token=\"needed\">"
    } else {
        "<body>"
    };
    let page = include_str!("dashboard/index.html").replacen("<body>", body, 1);
    asset("text/html; charset=utf-8", page)
}

/// Returns the routes of the files that the page loads.
pub(super) fn assets() -> Router<Arc<Server>> {
    let script = "text/javascript; charset=utf-8";
    let files = [
        (
            "/dashboard.css",
            "text/css; charset=utf-8",
            include_str!("dashboard/dashboard.css"),
        ),
        (
            "/dashboard.js",
            script,
            include_str!("dashboard/dashboard.js"),
        ),
        ("/charts.js", script, include_str!("dashboard/charts.js")),
    ];
    files
        .into_iter()
        .fold(Router::new(), |routes, (path, kind, text)| {
            routes.route(path, get(async move || asset(kind, text)))
        })
}

fn asset(kind: &'static str, text: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

/// `GET /v1/live?rule=NAME`: sends the state of a rule every second, as server-sent events.
pub(super) async fn live(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let rule = permitted_rule(&server, &headers, &uri)?;
    // The first event is made now, so that an unknown rule is an error.
    let first = state(&server, &rule).await?;
    let subscription = Subscription::open(server, headers)?;
    let later = stream::unfold((subscription, rule), next_state);
    let events = stream::iter([first]).chain(later);
    Ok(respond("text/event-stream", events))
}

type LiveState = (Subscription, String);

/// Returns the next event; the events end with the subscription, or when the rule is gone.
async fn next_state((subscription, rule): LiveState) -> Option<(Bytes, LiveState)> {
    subscription.step().await?.permit_rule(&rule).ok()?;
    let state = state(&subscription.server, &rule).await.ok()?;
    Some((state, (subscription, rule)))
}

async fn state(server: &Server, rule: &str) -> Result<Bytes, AskError> {
    let report = server.service.report(rule).await?;
    let rules = server.service.rules();
    let known = rules.named(rule.as_bytes())?;
    let allowed = known.outcomes.get(Outcome::Allow);
    let engine = server.service.engine();
    let state = engine.state();
    let usage = engine
        .memory()
        .and_then(|memory| memory.usage(known.own.id));
    let limit = known.own.rule.limit().per_second();
    let over = report
        .clients
        .iter()
        .filter(|client| client.figures.usage >= 1.0)
        .count();
    let clients: Vec<Value> = report.clients.iter().take(CLIENTS).map(client).collect();
    // A report may be shown again, so its own time is not that of the counters.
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let data = json!({
        "at": at.as_secs_f64(),
        "allowed": allowed,
        "denied": known.outcomes.total() - allowed,
        "engine": state.mode,
        "trouble": state.trouble,
        "displaced": usage.map(|(_, displaced)| displaced),
        "reload_error": server.reload_error(),
        "rates": distribution(rule, Some(limit), &report),
        "over": over,
        "names_are_keys": server.config.names.hmac_key.is_none(),
        "clients": clients,
    });
    Ok(format!("data: {data}\n\n").into())
}
