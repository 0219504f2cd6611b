//! The clients of a rule with the highest rates, and the distribution of rates.

use std::sync::Arc;
use std::time::Instant;

use earrrl::Nanos;
use earrrl::internal::{Rates, Survey, TopClient};

use super::Service;
use super::error::AskError;
use super::names::{Directory, ENVOY};
use super::reports::{LatestReport, MAX_TOP, SurveyReport, SurveyedClient};

impl Service {
    /// Returns the report on the rule of this name. Clients with overrides are included, each with
    /// its own limit. The walk over a large table takes a while and runs on a thread of its own.
    ///
    /// # Errors
    /// Returns an error if there is no such rule, or the walk failed.
    pub async fn report(self: &Arc<Self>, rule: &str) -> Result<Arc<SurveyReport>, AskError> {
        let mut latest = self.reports.0.lock().await;
        if let Some(known) = latest.get(rule).filter(|known| known.is_fresh()) {
            return Ok(Arc::clone(&known.report));
        }
        let started = Instant::now();
        let service = Arc::clone(self);
        let name = rule.to_owned();
        let walked = tokio::task::spawn_blocking(move || service.survey(&name)).await;
        let report = Arc::new(walked.map_err(|error| unavailable(error.to_string()))??);
        latest.retain(|_, known| known.is_fresh());
        let ended = Instant::now();
        let took = started.elapsed();
        latest.insert(
            rule.to_owned(),
            LatestReport {
                ended,
                took,
                report: Arc::clone(&report),
            },
        );
        Ok(report)
    }

    /// Walks over the clients of the rule of this name, and reports on them.
    ///
    /// # Errors
    /// Returns an error if there is no such rule, or the walk failed.
    pub fn survey(&self, name: &str) -> Result<SurveyReport, AskError> {
        if name == ENVOY && self.descriptors.load().is_some() {
            return Ok(seen_here(
                &self.descriptor_records.directory,
                self.clock.0.now(),
            ));
        }
        let rules = self.rules.load();
        let rule = rules.named(name.as_bytes())?;
        let now = self.clock.0.now();
        let Some(memory) = self.engine.memory() else {
            return Ok(seen_here(&rule.directory, now));
        };
        let surveys = rule.stores().map(|id| memory.survey(id, MAX_TOP));
        let surveys: Vec<Survey> = surveys.collect::<Result<_, _>>()?;
        let at = surveys.iter().map(|survey| survey.at).max().unwrap_or(now);
        let mut rates = Rates::default();
        let mut top = Vec::new();
        for survey in surveys {
            rates.merge(&survey.rates);
            top.extend(survey.top);
        }
        top.sort_by(|a, b| b.usage.total_cmp(&a.usage));
        top.truncate(MAX_TOP);
        let name = |fingerprint| {
            rule.directory
                .names()
                .and_then(|names| names.get(fingerprint))
        };
        let named = |figures: TopClient| SurveyedClient {
            name: name(figures.fingerprint),
            figures,
        };
        Ok(SurveyReport {
            at,
            clients: top.into_iter().map(named).collect(),
            rates,
        })
    }
}

/// Returns the report on clients whose states are in Redis, or under limits in Envoy's format: those that this node
/// has named, with the figures of their latest decisions.
fn seen_here(directory: &Directory, at: Nanos) -> SurveyReport {
    let named = directory
        .names()
        .map(|names| names.top(MAX_TOP))
        .unwrap_or_default();
    let mut rates = Rates::default();
    let mut clients = Vec::with_capacity(named.len());
    for (fingerprint, name) in named {
        let figures = name.as_top(fingerprint, at);
        rates.add(figures.usage * figures.limit);
        clients.push(SurveyedClient {
            figures,
            name: Some(name),
        });
    }
    clients.sort_by(|a, b| b.figures.usage.total_cmp(&a.figures.usage));
    SurveyReport { at, clients, rates }
}

fn unavailable(why: String) -> AskError {
    earrrl::EngineError::Unavailable(why).into()
}
