//! Rules that requests contain as text. Their number is limited, so that clients cannot fill the
//! memory with tables.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use earrrl::Rule;

use super::error::AskError;
use super::rule::ActiveRule;
use crate::engine::Engine;
use crate::metrics::Outcomes;

/// The greatest number of different rules that are accepted as text.
const MAX_TEXTS: usize = 64;
/// The greatest number of clients that the table of such a rule is sized for.
const MAX_CAPACITY: usize = 100_000;
/// The length of the longest accepted rule text, in bytes.
const MAX_TEXT_LEN: usize = 256;

#[derive(Debug)]
pub(super) struct InlineRules {
    allowed: bool,
    capacity: usize,
    known: RwLock<HashMap<String, Arc<ActiveRule>>>,
}

impl InlineRules {
    pub(super) fn new(allowed: bool, capacity: usize) -> Self {
        Self {
            allowed,
            capacity: capacity.min(MAX_CAPACITY),
            known: RwLock::default(),
        }
    }

    /// Returns the rule for this text, which is created when the text arrives for the first time.
    pub(super) fn get(
        &self,
        text: &str,
        engine: &Engine,
        outcomes: &Outcomes,
    ) -> Result<Arc<ActiveRule>, AskError> {
        if !self.allowed {
            return Err(AskError::InlineRulesOff);
        }
        if let Some(rule) = self
            .known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(text)
        {
            return Ok(Arc::clone(rule));
        }
        if text.len() > MAX_TEXT_LEN {
            let why = format!("rule: {} bytes; at most {MAX_TEXT_LEN}", text.len());
            return Err(AskError::Invalid(why));
        }
        let rule: Rule = text.parse()?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(rule) = known.get(text) {
            return Ok(Arc::clone(rule));
        }
        if known.len() >= MAX_TEXTS {
            return Err(AskError::TooManyInlineRules { most: MAX_TEXTS });
        }
        let rule = Arc::new(ActiveRule::inline(&rule, self.capacity, engine, outcomes)?);
        known.insert(text.to_owned(), Arc::clone(&rule));
        Ok(rule)
    }
}
