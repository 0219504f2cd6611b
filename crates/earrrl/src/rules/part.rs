//! One rule's part of a request.

use crate::cost::Cost;
use crate::rule::Rule;
use crate::store::Clients;
use crate::store::table::KeyHash;

/// The charge of a request to one client under one rule.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) clients: &'a Clients,
    pub(crate) key: KeyHash,
    pub(crate) cost: Cost,
}
