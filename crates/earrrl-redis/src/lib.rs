//! Shared rate limits across machines: EARRRL's rules on Redis or Valkey, one atomic script a decision.
//!
//! ```no_run
//! use earrrl::{Charge, Cost, Engine, Mode};
//! use earrrl_redis::{Options, RedisEngine};
//! use std::time::Duration;
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options::new("redis://127.0.0.1:6379");
//! let engine = RedisEngine::connect(options, Duration::from_secs(1)).await?;
//! let login = engine.prepare("login", &"recent-average 10/h half-life=1h strict".parse()?)?;
//! let charge = Charge { rule: login, key: b"192.0.2.7", cost: Cost::ONE };
//! let decision = engine.decide(&[charge], Mode::Check, None).await?;
//! println!("{} {:?}", decision.allowed, decision.rate);
//! # Ok(())
//! # }
//! ```
//!
//! - **One round trip a decision**, whatever the algorithm and however many rules: a Lua script judges
//!   and stores. It reports what it saw, and the figures of the answer are computed here, by the pure
//!   functions that every engine uses.
//! - **Redis's clock** is used, in whole microseconds: machines need not agree on time.
//! - **A Redis that is slow or gone** costs accuracy, not availability: a decision waits for
//!   [`Options::deadline`] at most, and is then made by [`Options::when_gone`]; after a few failures
//!   Redis is no longer asked, probed in the background, and given what was counted meanwhile.
//!
//! `docs/distributed.md` has the use with several servers, `docs/near.md` near decisions,
//! `docs/redis.md` failure modes and eviction, and `docs/sizing.md` the costs.

mod algorithm;
mod batches;
#[cfg(feature = "tls")]
mod certificates;
mod clocks;
mod connection;
mod decide;
mod deliver;
mod engine;
mod figures;
mod hold_format;
mod holds;
mod key;
mod ledger;
mod live_holds;
mod near;
mod options;
mod outage;
mod pending;
mod reply;
mod request;
mod rules;
mod send;
mod shared;
mod shared_entries;
mod status;
mod supervisor;
mod throttle;
mod units;
mod unsettled;

pub use algorithm::max_exact_units;
#[cfg(feature = "tls")]
pub use certificates::Certificates;
pub use engine::{Answer, RedisEngine};
pub use key::ClientKeys;
#[cfg(feature = "tls")]
pub use options::uses_tls;
pub use options::{
    Consistency, Options, WhenGone, check_node, check_prefix, check_rule, check_url,
    without_credentials,
};
pub use shared_entries::{SharedEntries, SharedEntry};
pub use status::{Counts, EngineMode, Status};
pub use throttle::{Shift, Shifted};
pub use units::check_near;

/// The README's example, compiled as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct RedisReadme;
