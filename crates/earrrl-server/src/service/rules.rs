//! The active rules, in a form that decisions can use without repeated work; and rules that requests contain as text,
//! whose number is bounded, so that clients cannot fill the memory with tables.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};

use earrrl::internal::lock;
use earrrl::{Rule, RuleId};
use earrrl_tower::ClientAddress;

use super::attributes::{ReadOptions, shown};
use super::error::AskError;
use super::limit::PreparedLimit;
use super::rule::{ActiveRule, PlannedRule, RuleRecords};
use crate::config::Config;
use crate::config::attribute::PLAIN;
use crate::config::rule::{OnError, RuleConfig};
use crate::engine::{Engine, PlannedLimit};
use crate::metrics::Outcomes;

/// The largest number of names of attributes that are logged because no rule uses them.
const MAX_UNREAD: usize = 32;

/// All active rules. A reload creates a new set and replaces the old one as a whole.
#[derive(Clone, Debug)]
pub struct ActiveRules {
    rules: Vec<ActiveRule>,
    by_name: HashMap<Box<[u8]>, usize>,
    /// The indexes of rules by the ids of their limits, built when the first reservation is
    /// committed.
    by_id: OnceLock<HashMap<RuleId, usize>>,
    serve_descriptors: bool,
    /// The settings for reading the attributes of requests.
    pub reading: ReadOptions,
    /// The HTTP status that makes a proxy deny a request.
    pub deny_status: u16,
    /// The request headers that rules use, as names of attributes: `header:NAME`.
    pub headers: Vec<String>,
    /// The names of the request headers of which a request may have only one value, since rules tell
    /// clients apart by them.
    pub single_headers: Vec<String>,
    /// The names of attributes that callers have sent and no rule uses, as far as they are logged.
    unread: Arc<Mutex<Vec<String>>>,
}

/// The headers that have several values in the requests of usual clients, or that proxies write.
const LISTS: [&str; 14] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "cookie",
    "forwarded",
    "if-match",
    "if-none-match",
    "te",
    "upgrade",
    "via",
    "x-forwarded-for",
];

/// Returns the headers that decide which rules apply, and to which client. A request that repeats one
/// with another value could show one value to the limiter and one to the application.
fn single_headers(rules: &[ActiveRule], client: &ClientAddress) -> Vec<String> {
    let named = rules.iter().flat_map(|rule| rule.deciding_attributes());
    let named = named.filter_map(|name| name.strip_prefix("header:"));
    let single = named.filter(|name| !LISTS.contains(name) && *name != client.header());
    let mut headers: Vec<String> = single.map(str::to_owned).collect();
    headers.sort_unstable();
    headers.dedup();
    headers
}

/// Returns the headers that rules use, and the header that identifies clients.
fn headers(rules: &[ActiveRule], client: &ClientAddress) -> Vec<String> {
    let named = rules.iter().flat_map(|rule| rule.attributes());
    let named = named
        .filter(|name| name.starts_with("header:"))
        .map(str::to_owned);
    let mut headers: Vec<String> = named
        .chain([format!("header:{}", client.header())])
        .collect();
    headers.sort_unstable();
    headers.dedup();
    headers
}

/// The rules of a configuration, before their limits are prepared in the engine.
pub struct RulesPlan<'a> {
    config: &'a Config,
    rules: Vec<PlannedRule<'a>>,
}

impl<'a> RulesPlan<'a> {
    /// Plans the limits of a configuration's rules.
    pub fn new(config: &'a Config) -> Self {
        let names: HashSet<&str> = config.rules.iter().map(|rule| rule.name.as_str()).collect();
        let is_shared = config.engine.shares_stores();
        let rules = config.rules.iter();
        let rules = rules.map(|rule| PlannedRule::new(rule, config.capacity, is_shared, &names));
        Self {
            config,
            rules: rules.collect(),
        }
    }

    /// Returns the planned limits.
    pub(super) fn limits(&self) -> impl Iterator<Item = &PlannedLimit> {
        self.rules.iter().flat_map(PlannedRule::limits)
    }

    /// Returns the active rules. `ids` holds the engine's ids for `RulesPlan::limits`, in the same
    /// order.
    pub fn finish(
        self,
        ids: &mut impl Iterator<Item = RuleId>,
        kept: RuleRecords<'_>,
    ) -> ActiveRules {
        let active = self
            .rules
            .iter()
            .map(|rule| ActiveRule::new(rule, ids, kept));
        let rules: Vec<_> = active.flatten().collect();
        let by_name = rules
            .iter()
            .enumerate()
            .map(|(index, rule)| (rule.name.as_bytes().into(), index));
        let config = self.config;
        ActiveRules {
            by_name: by_name.collect(),
            by_id: OnceLock::new(),
            serve_descriptors: config.rules.iter().any(RuleConfig::serves_descriptors),
            headers: headers(&rules, &config.client_address),
            single_headers: single_headers(&rules, &config.client_address),
            rules,
            unread: Arc::default(),
            deny_status: config.deny_status,
            reading: ReadOptions {
                client_address: config.client_address.clone(),
                paths: config.paths,
            },
        }
    }
}

impl ActiveRules {
    /// Returns these rules with a changed one in place of the one at `index`.
    pub(super) fn with(&self, index: usize, changed: ActiveRule) -> Self {
        let mut all = self.clone();
        all.by_id = OnceLock::new();
        if let Some(rule) = all.rules.get_mut(index) {
            *rule = changed;
        }
        all
    }

    /// Returns the rules, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &ActiveRule> + Clone {
        self.rules.iter()
    }

    /// Returns true if at least one rule applies to Envoy's descriptors.
    pub fn serve_descriptors(&self) -> bool {
        self.serve_descriptors
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns true if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Tells an engine over Redis the verdicts of the rules' `on_error` settings on requests that it cannot judge.
    pub(super) fn set_verdicts_on_error(&self, engine: &Engine) {
        let Some(redis) = engine.redis() else { return };
        let of_rule = |rule: &ActiveRule| {
            let allows = rule.on_error.map(|verdict| verdict == OnError::Allow);
            rule.ids().map(move |id| (id, allows)).collect::<Vec<_>>()
        };
        let verdicts: Vec<_> = self.rules.iter().flat_map(of_rule).collect();
        redis.set_verdicts_without_redis(&verdicts);
    }

    /// Logs each name in `names` of an attribute that no rule uses, once. Such a name is often a
    /// mistake of the caller, and the key of its requests then lacks an attribute.
    pub fn log_unread<'n>(&self, names: impl Iterator<Item = &'n str>) {
        let is_used = |name: &str| {
            PLAIN.contains(&name)
                || self
                    .headers
                    .iter()
                    .any(|header| header.eq_ignore_ascii_case(name))
                || self
                    .iter()
                    .flat_map(ActiveRule::attributes)
                    .any(|used| used == name)
        };
        for name in names.filter(|name| !is_used(name)) {
            let mut logged = lock(&self.unread);
            if logged.len() < MAX_UNREAD && !logged.iter().any(|known| known == name) {
                logged.push(name.to_owned());
                tracing::warn!(
                    name = shown(name),
                    "a request names an attribute that no rule uses"
                );
            }
        }
    }

    /// Returns the rule at `index` if it has this name. Connections remember the index of the rule
    /// that they used last, and a reload may have changed the order of the rules.
    #[inline]
    pub fn at(&self, index: usize, name: &[u8]) -> Option<&ActiveRule> {
        self.rules
            .get(index)
            .filter(|rule| rule.name.as_bytes() == name)
    }

    /// Returns the index of the rule of this name.
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns the rule and the limit that the engine knows by this id; `None` if the limit was
    /// removed from the configuration.
    pub fn of_id(&self, id: RuleId) -> Option<(&ActiveRule, &PreparedLimit)> {
        let ids = |(place, rule): (usize, &ActiveRule)| {
            rule.ids().map(move |id| (id, place)).collect::<Vec<_>>()
        };
        let by_id = self
            .by_id
            .get_or_init(|| self.rules.iter().enumerate().flat_map(ids).collect());
        let rule = self.rules.get(*by_id.get(&id)?)?;
        Some((rule, rule.limits().find(|limit| limit.id == id)?))
    }

    /// Returns the rule of this name.
    ///
    /// # Errors
    /// Returns an [`AskError::UnknownRule`] if no rule has this name.
    pub fn named(&self, name: &[u8]) -> Result<&ActiveRule, AskError> {
        self.get(name).ok_or_else(|| AskError::unknown_rule(name))
    }

    /// Returns the rule of this name; `None` if no rule has it.
    pub fn get(&self, name: &[u8]) -> Option<&ActiveRule> {
        self.rules.get(self.position(name)?)
    }
}

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
    /// The rules by their texts. They stay until the process ends, so that requests can borrow them: there are few.
    known: Mutex<HashMap<String, &'static ActiveRule>>,
}

impl InlineRules {
    pub(super) fn new(allowed: bool, capacity: usize) -> Self {
        Self {
            allowed,
            capacity: capacity.min(MAX_CAPACITY),
            known: Mutex::default(),
        }
    }

    /// Returns the rule for this text, which is created when the text arrives for the first time.
    pub(super) fn get(
        &self,
        text: &str,
        engine: &Engine,
        outcomes: &Outcomes,
    ) -> Result<&'static ActiveRule, AskError> {
        if !self.allowed {
            return Err(AskError::InlineRulesOff);
        }
        if text.len() > MAX_TEXT_LEN {
            let why = format!("rule: {} bytes; at most {MAX_TEXT_LEN}", text.len());
            return Err(AskError::Invalid(why));
        }
        let mut known = lock(&self.known);
        if let Some(rule) = known.get(text) {
            return Ok(rule);
        }
        let rule: Rule = text.parse()?;
        if known.len() >= MAX_TEXTS {
            return Err(AskError::TooManyInlineRules { most: MAX_TEXTS });
        }
        let rule = ActiveRule::inline(rule, self.capacity, engine, outcomes)?;
        let rule: &'static ActiveRule = Box::leak(Box::new(rule));
        known.insert(text.to_owned(), rule);
        Ok(rule)
    }
}
