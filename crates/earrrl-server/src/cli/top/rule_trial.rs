//! One rule that is tried on a log.

use earrrl::{
    Charge, Engine as _, ManualClock, MemoryEngine, Mode, NameOptions, Names, Nanos, Rule, RuleId,
};
use earrrl_logs::reading::{ClientNumbers, LoggedRequest};

use super::snapshot::{RuleCounts, TopRow, TopSnapshot};
use super::trial::LogTrial;
use crate::cli::CliFailure;

/// The number of clients that the table is sized for.
const CAPACITY: usize = 1_000_000;
/// The name under which the rule is shown.
const NAME: &str = "log";

/// A rule, and its clients so far.
pub(super) struct RuleTrial {
    engine: MemoryEngine<ManualClock>,
    id: RuleId,
    rule: Rule,
    names: Names,
    allowed: u64,
    denied: u64,
}

impl RuleTrial {
    /// Prepares the rule of this text.
    pub(super) fn new(text: &str) -> Result<Self, CliFailure> {
        let failed = |error: &dyn std::fmt::Display| CliFailure::new(error.to_string());
        let rule: Rule = text
            .parse()
            .map_err(|error| CliFailure::new(format!("--rule: {error}")))?;
        let engine = MemoryEngine::with_clock(CAPACITY, ManualClock::new(Nanos::ZERO));
        let engine = engine.map_err(|error| failed(&error))?;
        let id = engine
            .prepare(NAME, &rule)
            .map_err(|error| failed(&error))?;
        let mut options = NameOptions::default();
        options.from = 0.0;
        let names = Names::new(rule.limit(), options);
        Ok(Self {
            engine,
            id,
            rule,
            names,
            allowed: 0,
            denied: 0,
        })
    }
}

impl LogTrial for RuleTrial {
    fn take(&mut self, clients: &ClientNumbers, request: LoggedRequest) {
        let key = clients.key(request.client);
        let charge = Charge {
            rule: self.id,
            key,
            cost: request.cost,
        };
        let at = Some(Nanos::new(request.time));
        let decided = self.engine.decide(&[charge], Mode::Check, at).into_inner();
        // A rule of the command line has no `max_cost`, so no decision fails.
        let Ok(decision) = decided else { return };
        *(if decision.is_over(0) {
            &mut self.denied
        } else {
            &mut self.allowed
        }) += 1;
        if self.names.wants(&decision) {
            let hash = self.engine.hash(key);
            self.names
                .note(hash, self.rule.limit(), &decision, || key.to_vec());
        }
    }

    fn snapshot(&self, _rule: Option<&str>, limit: usize) -> Result<TopSnapshot, String> {
        let top = self
            .engine
            .top(self.id, limit)
            .map_err(|error| error.to_string())?;
        let named = |figures: earrrl::TopClient| {
            let name = self.names.get(figures.fingerprint);
            TopRow::of(figures, name)
        };
        let counts = RuleCounts {
            name: NAME.to_owned(),
            limit: self.rule.to_string(),
            requests: Some((self.allowed as f64, self.denied as f64)),
        };
        let clients = top.into_iter().map(named).collect();
        Ok(TopSnapshot {
            rule: NAME.to_owned(),
            rules: vec![counts],
            clients,
            names_are_keys: true,
            ..TopSnapshot::default()
        })
    }

    fn reset(&mut self, _rule: &str, key: &[u8]) -> Result<(), String> {
        self.names.forget(self.engine.hash(key));
        self.engine
            .reset(self.id, key)
            .into_inner()
            .map_err(|error| error.to_string())
    }
}
