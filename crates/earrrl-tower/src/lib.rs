//! Rate limits for axum, hyper, tonic and anything that speaks tower.

pub mod address;
mod asked;
mod client_address;
mod conclude;
pub mod cost;
mod event;
mod forwarded;
mod future;
pub mod headers;
pub mod key;
mod known;
mod layer;
mod marks;
pub mod problem;
mod questions;
mod request_rule;
mod response;
mod service;
mod settlement;
mod shared;
mod verdict;

pub use address::Prefixes;
pub use client_address::{AddressSource, ClientAddress};
pub use event::Event;
pub use future::ResponseFuture;
pub use key::PeerAddress;
pub use layer::{Builder, LayerError, RateLimitLayer};
pub use request_rule::{Missing, RequestRule};
pub use response::{Denial, Reason, ResponseBody};
pub use service::RateLimit;
pub use settlement::{Charged, Settlement};
pub use shared::OnFailure;
pub use verdict::Verdict;
