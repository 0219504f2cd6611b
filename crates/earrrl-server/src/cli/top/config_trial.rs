//! A server's configuration that is tried on a log.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use earrrl::Outcome;
use earrrl_logs::reading::{ClientNumbers, LogKey, LoggedRequest, Selection};
use earrrl_server::config::Config;
use earrrl_server::service::rule::ActiveRule;

use super::snapshot::{RuleCounts, TopRow, TopSnapshot};
use super::trial::LogTrial;
use crate::cli::{CliFailure, failure};
use crate::configured::Configured;

/// A configuration, and the clients of its rules so far.
pub(super) struct ConfigTrial(Configured);

impl ConfigTrial {
    /// Reads a configuration, and makes `selection` read the attributes that its rules need.
    pub(super) fn load(path: &Path, selection: &mut Selection) -> Result<Self, CliFailure> {
        let mut config =
            Config::load_rules(path).map_err(|error| failure::lines(&error.to_string()))?;
        if config.rules.is_empty() {
            return Err(CliFailure::new(format!(
                "{}: no rule to try",
                path.display()
            )));
        }
        // The names stay on this machine, so that each client of the log gets one.
        config.server.names.options.from = 0.0;
        config.server.names.hmac_key = None;
        let configured = Configured::new(&config);
        let configured = configured.map_err(|error| CliFailure::new(error.to_string()))?;
        selection.key = LogKey::computed(Arc::new(configured.attributes()));
        selection.prefixes = config.client_address.client_prefixes();
        Ok(Self(configured))
    }
}

impl LogTrial for ConfigTrial {
    fn take(&mut self, clients: &ClientNumbers, request: LoggedRequest) {
        let decided = self
            .0
            .decide(clients, request, |_| Ok::<(), Infallible>(()));
        decided.unwrap_or_else(|never| match never {});
    }

    fn snapshot(&self, rule: Option<&str>, limit: usize) -> Result<TopSnapshot, String> {
        let service = self.0.service();
        let rules: Vec<_> = service.rules().iter().map(counts_of).collect();
        let first = || {
            rules
                .first()
                .map(|rule| rule.name.clone())
                .unwrap_or_default()
        };
        let rule = rule.map_or_else(first, str::to_owned);
        let report = service.survey(&rule).map_err(|error| error.to_string())?;
        let clients = report.clients.into_iter().take(limit);
        let clients = clients
            .map(|client| TopRow::of(client.figures, client.name))
            .collect();
        Ok(TopSnapshot {
            rule,
            rules,
            clients,
            names_are_keys: true,
            ..TopSnapshot::default()
        })
    }

    fn reset(&mut self, rule: &str, key: &[u8]) -> Result<(), String> {
        self.0.reset(rule, key)
    }
}

fn counts_of(rule: &ActiveRule) -> RuleCounts {
    let allowed = rule.outcomes.get(Outcome::Allow);
    RuleCounts {
        name: rule.name.clone(),
        limit: rule.own.rule.to_string(),
        requests: Some((allowed as f64, (rule.outcomes.total() - allowed) as f64)),
    }
}
