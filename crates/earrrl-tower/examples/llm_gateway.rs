//! A gateway to a language model in axum, with a budget of tokens for each user: an estimate is
//! reserved before the model is asked, and the tokens that it reports are committed when the stream
//! has ended or the client has left. Responses have the headers that clients of the large providers
//! read. The model is a toy that speaks the OpenAI-compatible API.
//!
//! Run it, then `python3 contrib/llm/chat.py http://127.0.0.1:3000 alice "Tell me a story" 100`.
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use earrrl::{Cost, HoldTerms, MemoryEngine, Quota, Rule};
use earrrl_tower::{Missing, RateLimitLayer, RequestHold, RequestRule, Verdict, key};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderName, StatusCode, header::CONTENT_TYPE};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::sync::Arc;

type Error = Box<dyn std::error::Error>;

/// The estimate of a request in tokens, and its body, which has been read for it.
#[derive(Clone)]
struct Estimated {
    prompt: u64,
    max_tokens: u64,
    body: Value,
}

/// Returns the gateway: at most `limit` tokens for each user.
pub(crate) fn gateway(
    engine: Arc<MemoryEngine>,
    limit: &str,
    model: SocketAddr,
) -> Result<Router, Error> {
    let user = key::header(HeaderName::from_static("x-user"));
    let limit: Rule = limit.parse()?;
    let most = Quota::of(limit.limit()).units;
    let tokens = RequestRule::new("tokens", limit, user)
        .missing(Missing::Deny(StatusCode::UNAUTHORIZED))
        .cost_by(|request| {
            let estimated = request.extensions.get::<Estimated>();
            estimated.map_or(Cost::ONE, |it| Cost::from_units(it.prompt + it.max_tokens))
        })
        .reserved();
    // A user with little left gets a shorter answer instead of a denial.
    let terms = HoldTerms::default().ttl(Duration::from_secs(600)).at_most();
    let builder = RateLimitLayer::builder(engine)
        .rule(tokens)
        .hold_terms(terms);
    let builder = builder.always_verdict(true).respond_with(move |denial| {
        let mut response = denial.problem();
        response
            .headers_mut()
            .extend(token_headers(most, denial.verdict));
        response
    });
    let layer = builder.build()?;
    let routes = Router::new().route("/v1/chat/completions", post(complete));
    let routes = routes.with_state((model, most));
    // The last layer runs first: it reads the body, from which the estimate is made.
    Ok(routes.layer(layer).layer(from_fn(estimate)))
}

/// Estimates the tokens of a request: about four bytes a token of the prompt, and the longest answer.
async fn estimate(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.ok();
    let Some(body) = body.and_then(|body| serde_json::from_slice::<Value>(&body).ok()) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let prompt = body["messages"].to_string().len() as u64 / 4;
    let max_tokens = body["max_tokens"].as_u64().unwrap_or(1024).min(100_000);
    parts.extensions.insert(Estimated {
        prompt,
        max_tokens,
        body,
    });
    next.run(Request::from_parts(parts, Body::empty())).await
}

/// Returns the headers that clients of the large providers read: the tokens of the limit, the
/// remaining ones, and the time until all are available again.
fn token_headers(most: u64, verdict: &Verdict) -> HeaderMap {
    let Some(decision) = &verdict.decision else {
        return HeaderMap::new();
    };
    let headers = [
        ("x-ratelimit-limit-tokens", most.to_string()),
        (
            "x-ratelimit-remaining-tokens",
            decision.remaining.to_string(),
        ),
        ("x-ratelimit-reset-tokens", duration(decision.reset_after)),
    ];
    let headers = headers.map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
    headers.into_iter().flatten().collect()
}

/// Returns a time as these clients read it, rounded up: `20ms`, `1s` or `6m0s`.
pub(crate) fn duration(time: Duration) -> String {
    let millis = time.as_nanos().div_ceil(1_000_000);
    let secs = millis.div_ceil(1000);
    match (secs / 3600, secs / 60 % 60, secs % 60) {
        _ if millis < 1000 => format!("{millis}ms"),
        (0, 0, secs) => format!("{secs}s"),
        (0, minutes, secs) => format!("{minutes}m{secs}s"),
        (hours, minutes, secs) => format!("{hours}h{minutes}m{secs}s"),
    }
}

/// Asks the model, and passes its events on while it reads the tokens that they report.
async fn complete(
    State((model, most)): State<(SocketAddr, u64)>,
    verdict: Verdict,
    Extension(hold): Extension<RequestHold>,
    Extension(mut estimated): Extension<Estimated>,
) -> Response {
    let granted = (hold.granted().billionths() / 1_000_000_000) as u64;
    let answer = estimated
        .max_tokens
        .min(granted.saturating_sub(estimated.prompt))
        .max(1);
    estimated.body["max_tokens"] = json!(answer);
    estimated.body["stream"] = json!(true);
    estimated.body["stream_options"] = json!({ "include_usage": true });
    let request = Request::post(format!("http://{model}/v1/chat/completions"))
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(estimated.body.to_string()));
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let Ok(request) = request else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let Ok(response) = client.request(request).await else {
        hold.report(Cost::ZERO);
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let mut usage = Usage {
        prompt: estimated.prompt,
        answer: 0,
        reported: None,
        line: Vec::new(),
    };
    let body = Body::new(response.into_body()).into_data_stream();
    let body = body.map(move |bytes| {
        if let Ok(bytes) = &bytes {
            usage.read(bytes);
            hold.report(Cost::from_units(usage.tokens()));
        }
        bytes
    });
    let headers = token_headers(most, &verdict);
    (
        headers,
        [(CONTENT_TYPE, "text/event-stream")],
        Body::from_stream(body),
    )
        .into_response()
}

/// The tokens of a stream, as far as it has arrived.
struct Usage {
    prompt: u64,
    answer: u64,
    /// The tokens by the model's own account, which comes last.
    reported: Option<u64>,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
}

impl Usage {
    fn tokens(&self) -> u64 {
        self.reported.unwrap_or(self.prompt + self.answer)
    }

    fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.read_line();
                self.line.clear();
            } else if self.line.len() < 1 << 16 {
                self.line.push(*byte);
            }
        }
    }

    fn read_line(&mut self) {
        let event = self.line.strip_prefix(b"data: ");
        let event = event.and_then(|event| serde_json::from_slice::<Value>(event).ok());
        let Some(event) = event else { return };
        self.answer += u64::from(event["choices"][0]["delta"]["content"].is_string());
        if let Some(total) = event["usage"]["total_tokens"].as_u64() {
            // The tokens of a cached prompt are free.
            let cached = event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
            self.reported = Some(total.saturating_sub(cached.unwrap_or(0)));
        }
    }
}

/// Returns the toy model. It answers with `max_tokens` words, and has the prompts in its cache that
/// begin with "Again".
pub(crate) fn model() -> Router {
    Router::new().route("/v1/chat/completions", post(generate))
}

async fn generate(body: Bytes) -> Response {
    let Ok(asked) = serde_json::from_slice::<Value>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let prompt = asked["messages"].to_string().len() as u64 / 4;
    let is_cached = asked["messages"][0]["content"]
        .as_str()
        .unwrap_or("")
        .starts_with("Again");
    let words = asked["max_tokens"].as_u64().unwrap_or(16);
    let word = |_| json!({ "choices": [{ "delta": { "content": "word " } }] });
    let usage = json!({ "choices": [], "usage": {
        "prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words,
        "prompt_tokens_details": { "cached_tokens": if is_cached { prompt } else { 0 } },
    }});
    let events = stream::iter((0..words).map(word).chain([usage])).then(|event| async move {
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok::<_, Infallible>(format!("data: {event}\n\n"))
    });
    (
        [(CONTENT_TYPE, "text/event-stream")],
        Body::from_stream(events),
    )
        .into_response()
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, model()).await });
    let engine = Arc::new(MemoryEngine::new(100_000)?);
    let app = gateway(engine, "token-bucket 2000 refill=10/s", address)?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app).await?)
}
