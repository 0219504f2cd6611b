//! Decisions without a round trip, by Redis's last snapshot of a client and this node's charges
//! since.
//!
//! - A request over the limit by both is denied. Denied requests of strict rules are charged and
//!   sent later.
//! - A request within this node's share of what was left
//!   ([`Client`](crate::clients::client::Client)) is allowed.
//! - For any other request, Redis is asked at once, and gets the pending charges in the same call.
//!
//! A node claims its share in Redis, where the scripts of other nodes see the claim. So all nodes
//! together never spend more than was left, however old their snapshots are. A claim expires after
//! [`claim_ttl`](crate::clients::claim_ttl).
//!
//! At every interval of [`Options::sync`](crate::Options::sync), the clients that this node decided
//! are exchanged, many in one write. Clients come first if other nodes must learn of their
//! decisions, or if their share is half spent or half expired. The others, perhaps a hundred
//! thousand, take turns. A node's contribution has a number, by which Redis adds it only once even
//! if it is sent several times.

pub(crate) mod decide;
pub(crate) mod exchange;
pub(crate) mod heartbeat;
pub(crate) mod rounds;
