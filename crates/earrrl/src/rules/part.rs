//! The part of a request that concerns one rule.

use crate::cost::Cost;
use crate::rule::Rule;
use crate::store::Clients;
use crate::store::table::KeyHash;

/// The charge of a request to one client under one rule, with the store of the rule's clients.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) clients: &'a Clients,
    pub(crate) key: KeyHash,
    pub(crate) cost: Cost,
}
