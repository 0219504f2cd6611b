//! The limits that functions return for requests. Each is prepared when a request first has it.

use std::fmt::Write;
use std::sync::{Arc, PoisonError};

use earrrl::{Engine, EngineError, Mode, Rule, RuleError};
use http::StatusCode;
use http::request::Parts;
use sha2::{Digest, Sha256};

use crate::charges::{RequestCharges, Role};
use crate::request_rule::RequestRule;
use crate::shared::SharedLimits;

/// The greatest number of different limits that functions may have returned for all rules of a layer.
const MAX_LIMITS: usize = 1000;

impl<E: Engine> SharedLimits<E> {
    /// Reads the charges of a request.
    ///
    /// # Errors
    /// Returns the status of the denial if the request lacks a key that a rule requires.
    #[inline]
    pub(crate) fn read(
        &self,
        charges: &mut RequestCharges,
        request: &Parts,
    ) -> Result<(), StatusCode> {
        charges.read(&self.rules, request, |rule, limit| {
            let place = self.place_of(rule, limit);
            let logged = place.inspect_err(|error| rule.hints.refused(&rule.name, error));
            logged.ok()
        })
    }

    /// Returns the index of a limit of a rule in the prepared rules.
    fn place_of(&self, rule: &RequestRule, limit: Rule) -> Result<usize, EngineError> {
        let text = text_of(&rule.name, &limit);
        let known = self.places.read();
        let known = known
            .unwrap_or_else(PoisonError::into_inner)
            .get(&text)
            .copied();
        known.map_or_else(|| self.add(rule, limit, text), Ok)
    }

    fn add(&self, rule: &RequestRule, limit: Rule, text: String) -> Result<usize, EngineError> {
        let all = self.places.write();
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = all.get(&text) {
            return Ok(*place);
        }
        if all.len() >= MAX_LIMITS {
            let problem = format!("`{limit}` would be one more than {MAX_LIMITS} different limits");
            return Err(RuleError::new(problem).of("limit_by").into());
        }
        if !rule.reserved {
            limit.accept_mode(Mode::Check)?;
        }
        let role = Role::Other(engine_name(&rule.name, &text));
        let other = self.prepare(&rule.name, limit, role)?;
        let before = self.prepared.rcu(|rules| {
            let mut rules = Vec::clone(rules);
            rules.push(other.clone());
            rules
        });
        let place = before.len();
        all.insert(text, place);
        Ok(place)
    }
}

/// Returns a text that is the same for equal limits of a rule only.
fn text_of(name: &str, limit: &Rule) -> String {
    let (action, max_cost) = (limit.action(), limit.max_cost());
    let (max_bytes, on_expiry) = (limit.max_bytes(), limit.on_expiry());
    format!("{name} {limit} {action:?} {max_cost} {max_bytes:?} {on_expiry:?}")
}

/// Returns the name of a limit in the engine: that of its rule, perhaps shortened, and a hash of its text, so that all
/// processes that share a directory use one name.
fn engine_name(rule: &str, text: &str) -> Arc<str> {
    let mut name = format!("{rule:.47}-");
    for byte in &Sha256::digest(text)[..8] {
        let _ = write!(name, "{byte:02x}");
    }
    name.into()
}
