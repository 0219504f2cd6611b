//! Rate limits for axum, hyper, tonic and anything that speaks tower.
//!
//! A [`RateLimitLayer`] judges each request before the service that it wraps, by any rule of
//! [`earrrl`] and over any of its engines: this process' memory, which never grows with the number
//! of clients, or Redis, for several machines. Denied requests get status 429 with problem details,
//! `Retry-After` and `RateLimit`; a client that obeys these headers is not denied again.
//!
//! ```
//! use axum::{Router, routing::get};
//! use earrrl::MemoryEngine;
//! use earrrl_tower::{ClientAddress, RateLimitLayer, RequestRule};
//!
//! let per_address = RequestRule::new(
//!     "per-address",
//!     "recent-average 5/s half-life=30s".parse()?,
//!     ClientAddress::default(),
//! );
//! let layer = RateLimitLayer::builder(MemoryEngine::new(100_000)?).rule(per_address).build()?;
//! let app: Router = Router::new().route("/", get("hello")).layer(layer);
//! // The address of the connection comes with
//! // app.into_make_service_with_connect_info::<std::net::SocketAddr>().
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Clients
//!
//! A [`RequestRule`] has a [`key`] that tells clients apart: [`ClientAddress`] (the connection's, or
//! what trusted proxies append to `X-Forwarded-For`, `Forwarded` and others, read from the right;
//! IPv6 by /64), [`key::header`], [`key::cookie`], [`key::extension`], `key::MatchedPath`, a closure
//! ([`key::by`]), or a tuple of these. Requests without a key share one, unless
//! [`RequestRule::missing`] is set.
//!
//! # Costs
//!
//! A request costs 1 unless [`RequestRule::cost`] or [`RequestRule::cost_by`] is set. Costs that are
//! known only later are charged by [`RequestRule::cost_after`], which sees the response, or by a
//! [`Settlement`], which a handler or a body keeps. Such a charge is stored even if it exceeds the
//! limit.
//!
//! Charges that come afterwards let concurrent requests overshoot. A rule that is
//! [`reserved`](RequestRule::reserved) charges an estimate before the request is passed on, and
//! corrects it to the cost that the handler reports by a [`RequestHold`].
//!
//! # Decisions
//!
//! A request is charged to all rules that apply, or to none if one of them denies it. Depending on
//! the rule's [`Action`](earrrl::Action) a request over the limit is denied, held back for a while,
//! or passed on with a [`Verdict`] in its extensions. gRPC calls get RESOURCE_EXHAUSTED. While the
//! engine fails, requests pass, unless [`Builder::on_failure`] is set.
//!
//! # Testing
//!
//! With `MemoryEngine::with_clock(capacity, Arc::new(ManualClock::new(…)))` a test can let an hour
//! pass at once; see `examples/manual_clock.rs`.
//!
//! # Features
//!
//! - `axum`: matched paths, the connection's address of axum, [`Verdict`] as an extractor;
//! - `tonic`: the connection's address of tonic;
//! - `tokio`, which both include: [`cost_after`](RequestRule::cost_after) for clients that left, over
//!   engines that are not in memory.
//!
//! # For other frameworks, and authors of servers
//!
//! [`RateLimitLayer::judge`] judges a request without tower.
//! [`headers`], [`problem`], [`address`], [`path`] and [`bounded_key`] are the parts that the layer itself is made of.

pub mod address;
mod bounded_key;
mod charges;
mod client_address;
mod conclusion;
pub mod cost;
mod forwarded;
mod future;
pub mod headers;
mod held;
mod hints;
mod judge;
pub mod key;
mod key_part;
mod lasting;
mod layer;
mod limit_by;
pub mod path;
mod pending;
pub mod problem;
mod request_hold;
mod request_rule;
mod response;
mod service;
mod settlement;
mod shared;
mod verdict;

pub use address::Prefixes;
pub use bounded_key::{MAX_KEY_LEN, bounded_key};
pub use client_address::{AddressSource, ClientAddress};
pub use conclusion::{Judged, Passed};
pub use future::ResponseFuture;
/// The types of requests and responses, for services that do not depend on `http` themselves.
pub use http;
pub use key::PeerAddress;
pub use key_part::{Alternative, ClientLengths, KeyPart, RequestAttribute};
pub use layer::{Builder, LayerError, RateLimitLayer};
pub use request_hold::RequestHold;
pub use request_rule::{Missing, RequestRule};
pub use response::{Denial, Reason, ResponseBody};
pub use service::RateLimit;
pub use settlement::{Charged, Settlement};
pub use shared::OnFailure;
pub use verdict::{Event, Verdict};

/// Runs the examples of both READMEs and of the guide as doctests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../../docs/middleware.md")]
struct TowerReadme;
