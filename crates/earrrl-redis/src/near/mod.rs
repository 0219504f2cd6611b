//! Decisions without a round trip: a node decides by the last snapshot from Redis and by what it has charged since.
//!
//! - Over the limit by both: denied. Strict attempts are pending.
//! - Within this node's share of what was left ([`Client`](crate::clients::client::Client)): allowed.
//! - Otherwise Redis is asked now, and gets the pending charges in the same call.
//!
//! A node claims its share in Redis, where the other nodes' scripts see it. So all of them together never spend more
//! than was left, however old their snapshots are. A claim expires ([`claim_ttl`](crate::clients::claim_ttl)).
//!
//! Every [`Options::sync`](crate::Options::sync) the clients for which this node decided are exchanged, many in one
//! write: first those of which other nodes must learn, or whose share is half spent or half expired. There may be a
//! hundred thousand others; they take turns. A node's contribution carries its number, and Redis adds it once,
//! however often it is sent.

pub(crate) mod decide;
pub(crate) mod exchange;
pub(crate) mod heartbeat;
pub(crate) mod rounds;
