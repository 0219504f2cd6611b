//! Reports on the clients of rules, and for how long one is shown.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use earrrl::Nanos;
use earrrl::internal::{Name, Rates, TopClient};
use tokio::sync::Mutex;

/// The greatest number of clients that a report lists.
pub const MAX_TOP: usize = 1000;
/// A walk that takes longer than this is repeated only after ten times as long.
const SHORT: Duration = Duration::from_millis(50);

/// A client of a report, and its name if it is known.
#[derive(Clone, Debug)]
pub struct SurveyedClient {
    /// The figures.
    pub figures: TopClient,
    /// The name and the counts since the client was named.
    pub name: Option<Name>,
}

/// The highest clients of a rule and the distribution of all rates.
#[derive(Clone, Debug)]
pub struct SurveyReport {
    /// The instant that the figures refer to.
    pub at: Nanos,
    /// The clients with the highest usage of their limit, at most [`MAX_TOP`].
    pub clients: Vec<SurveyedClient>,
    /// The distribution of the rates of all clients.
    pub rates: Rates,
}

/// The latest reports. Only one walk runs at a time.
#[derive(Debug, Default)]
pub struct Reports(pub(super) Mutex<HashMap<String, LatestReport>>);

/// The latest report on a rule.
#[derive(Debug)]
pub(super) struct LatestReport {
    pub(super) ended: Instant,
    /// The time that the walk took.
    pub(super) took: Duration,
    pub(super) report: Arc<SurveyReport>,
}

impl LatestReport {
    /// Returns true if the report is to be shown again instead of another walk.
    pub(super) fn is_fresh(&self) -> bool {
        self.took > SHORT && self.ended.elapsed() < 10 * self.took
    }
}

impl Reports {
    /// Drops the reports, which a reset has made outdated.
    pub(super) fn clear(&self) {
        if let Ok(mut latest) = self.0.try_lock() {
            latest.clear();
        }
    }
}
