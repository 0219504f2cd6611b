//! Warnings about valid configurations: limits that checks do not apply, and limits that are shared
//! through Redis less well than they could be.

use std::time::Duration;

use earrrl::{Limit, Quota, Rule};
use earrrl_redis::{Consistency, max_exact_units};

use super::rule::RuleConfig;
use super::{Config, EngineConfig};

/// The longest `sync` that needs no warning.
const LONG_SYNC: Duration = Duration::from_secs(10);
/// The number of `sync` intervals that a near rule's window should have at least.
const SYNCS: f64 = 5.0;

impl Config {
    /// Returns warnings about rules that only reservations apply, near rules whose counts are exchanged too rarely, and about limits
    /// whose counts Redis rounds.
    pub fn cautions(&self) -> Vec<String> {
        let reserved = self.rules.iter().filter(|config| config.rule.limit().is_concurrent());
        let mut cautions: Vec<String> = reserved.map(only_reserved).collect();
        let EngineConfig::Redis(redis) = &self.engine else { return cautions };
        let sync = redis.options.sync;
        let is_near = |rule: &RuleConfig| rule.consistency == Consistency::Near;
        if sync > LONG_SYNC && self.rules.iter().any(is_near) {
            cautions.push(format!(
                "[engine] sync = {sync:?} is above {LONG_SYNC:?}: servers learn that late what other servers counted"
            ));
        }
        for config in &self.rules {
            let overrides = config.overrides.iter().map(|special| &special.rule);
            for rule in std::iter::once(&config.rule).chain(overrides) {
                let near = is_near(config).then(|| short_window(rule, sync)).flatten();
                let found = near.into_iter().chain(rounded(rule.limit()));
                cautions.extend(found.map(|caution| format!("{}: {rule}: {caution}", config.name)));
            }
        }
        cautions
    }
}

/// Returns the warning about a rule of concurrent.
fn only_reserved(config: &RuleConfig) -> String {
    format!(
        "{}: {} applies to reservations alone (/v1/reserve, EARRRL.RESERVE); checks, proxies and Envoy's \
         descriptors pass it by",
        config.name, config.rule
    )
}

/// Returns a warning if a near rule's window has too few exchanges.
fn short_window(rule: &Rule, sync: Duration) -> Option<String> {
    let limit = rule.limit();
    let window = Quota::of(limit).units as f64 / limit.per_second();
    (window < SYNCS * sync.as_secs_f64()).then(|| {
        format!(
            "the window of {window:.3} s is shorter than {SYNCS} times sync = {sync:?}: with \
             consistency = \"near\" servers may admit less than the limit, or a strict rule more; \
             want a shorter sync or consistency = \"exact\""
        )
    })
}

/// Returns a warning if Redis stores a limit's larger counts rounded.
fn rounded(limit: &Limit) -> Option<String> {
    let (exact, units) = (max_exact_units(limit)?, Quota::of(limit).units);
    (units > exact)
        .then(|| format!("Redis stores counts above {exact} units rounded; this limit has {units}"))
}
