//! The `[[rule]]` tables of the configuration.

mod terms;

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use earrrl::internal::check_name;
use earrrl::{Action, Cost, MAX_CHARGES, Mode, Nanos, Quota, Rule};
use earrrl_logs::text::counted;
use earrrl_redis::Consistency;
use earrrl_tower::Prefixes;
use earrrl_tower::path::Paths;

use self::terms::{min_cost, overrides};
use super::attribute::{Condition, KeyPart, client_lengths, conditions, key_parts};
use super::engine::EngineConfig;
use super::table::{Field, Table, defaults};

pub use self::terms::{CostSource, Override, Terms, action_name};
pub(super) use self::terms::{Surroundings, check_passes};

/// The largest number of rules in a configuration.
pub const MAX_RULES: usize = 1000;
/// The bounds of a rule's capacity, in clients.
pub(super) const CAPACITIES: RangeInclusive<u64> = 1..=10_000_000_000;

/// The consistencies of a rule's decisions.
const CONSISTENCY: [(&str, Consistency); 2] =
    [("exact", Consistency::Exact), ("near", Consistency::Near)];

/// The verdict of a rule when the engine fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The rule does not deny the request, so the other rules decide.
    Allow,
    /// The rule denies the request.
    Deny,
}

impl OnError {
    /// The names of the verdicts.
    const NAMED: [(&str, Self); 2] = [("allow", Self::Allow), ("deny", Self::Deny)];
}

/// The treatment of a request that lacks an attribute of a rule's key, or whose value of it is
/// empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissing {
    /// All such requests count as one client, so that no client evades the limit by leaving the
    /// attribute out.
    #[default]
    Share,
    /// The rule does not apply to such requests.
    Skip,
    /// Such requests are denied.
    Deny,
}

impl OnMissing {
    /// The names of the treatments.
    const NAMED: [(&str, Self); 3] = [
        ("share", Self::Share),
        ("skip", Self::Skip),
        ("deny", Self::Deny),
    ];
}

/// A validated rule of the configuration.
#[derive(Clone, Debug)]
pub struct RuleConfig {
    /// The rule's name.
    pub name: String,
    /// The name that the rules for all levels share, if this rule is for a level.
    pub group: Option<String>,
    /// The rule's limit, its action over the limit, and the largest cost of a request.
    pub rule: Rule,
    /// The attributes whose values identify a client.
    pub key: Vec<KeyPart>,
    /// The conditions under which the rule applies to a request; all must hold.
    pub conditions: Vec<Condition>,
    /// The source of a request's cost.
    pub cost: CostSource,
    /// The name of the unit of costs and limits, such as `USD`; `None` for requests, and for units without a name.
    pub unit: Option<Arc<str>>,
    /// The smallest cost that a request's attribute can set.
    pub min_cost: Cost,
    /// The rule's own capacity in clients; `None` for the configuration's default.
    pub capacity: Option<usize>,
    /// The place of the rule's capacity in the file, if it is set.
    pub capacity_place: Option<Range<usize>>,
    /// The rule's verdict when the engine fails; `None` for the engine's policy, or for allowing
    /// the request if the engine has no policy.
    pub on_error: Option<OnError>,
    /// The treatment of a request that lacks an attribute of the key.
    pub missing: OnMissing,
    /// The consistency of the rule's decisions between servers that share a Redis.
    pub consistency: Consistency,
    /// The conditions under which a request is exempt from the rule; one is enough.
    pub exempt: Vec<Condition>,
    /// Different limits for some clients. The first override whose conditions all hold applies.
    pub overrides: Arc<Vec<Override>>,
    /// The terms that overrides share with the rule.
    pub terms: Arc<Terms>,
}

impl RuleConfig {
    /// Makes the rule a dry run, which only counts what it would have denied.
    pub(super) fn observe(&mut self) {
        self.on_error = Some(OnError::Allow);
        Arc::make_mut(&mut self.terms).action = Action::Observe;
        let overrides = Arc::make_mut(&mut self.overrides).iter_mut();
        let overrides = overrides.map(|entry| &mut entry.rule);
        for rule in overrides.chain([&mut self.rule]) {
            // This cannot fail, since every algorithm has the action `observe`.
            if let Ok(observing) = rule.clone().with_action(Action::Observe) {
                *rule = observing;
            }
        }
    }

    /// Returns true if the rule has conditions on descriptors of Envoy's rate limit service.
    pub fn serves_descriptors(&self) -> bool {
        let names = |condition: &Condition| {
            condition.attribute == "domain" || condition.attribute.starts_with("descriptor:")
        };
        self.conditions.iter().any(names)
    }

    /// Returns the units that the rule lets through at once from a new client, as `60 requests` or `0.5 USD`.
    pub fn at_once(&self) -> String {
        let limit = self.rule.limit();
        match (&self.unit, &self.cost) {
            (Some(unit), _) => {
                let (_, new) = limit.decide(None, Nanos::ZERO, Cost::ZERO, Mode::Peek);
                format!("{} {unit}", Quota::left(limit, &new))
            }
            (None, CostSource::Fixed(cost)) if *cost == Cost::ONE => {
                counted(limit.at_once(), "request")
            }
            (None, _) => counted(limit.at_once(), "unit"),
        }
    }

    /// Cuts the addresses in conditions on clients to the prefixes that keys contain, so that the
    /// two can be compared.
    fn cut_clients(&mut self, prefixes: Prefixes) {
        let overrides = Arc::make_mut(&mut self.overrides).iter_mut();
        let overrides = overrides.map(|entry| &mut entry.conditions);
        for condition in overrides.chain([&mut self.exempt]).flatten() {
            condition.cut_clients(prefixes);
        }
    }
}

/// Reads the name of a unit.
fn unit(field: Field<'_>) -> Option<Arc<str>> {
    let is_name = |text: &&str| {
        (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let want = "a unit of 1 to 16 letters and digits, as \"USD\" or \"tokens\"";
    field.parsed(want, |text| Some(text).filter(is_name).map(Arc::from))
}

/// Reads all rules, and returns them with the names of all rules, valid or not.
pub(super) fn read_all(
    file: &Table<'_>,
    around: &Surroundings<'_>,
) -> (Vec<RuleConfig>, BTreeSet<String>) {
    let tables = file.tables("rule");
    if let Some(excess) = tables.get(MAX_RULES) {
        excess.mistake(format!("{} rules; at most {MAX_RULES}", tables.len()));
    }
    let mut names = BTreeSet::new();
    let mut rules: Vec<RuleConfig> = Vec::with_capacity(tables.len());
    let mut for_all = 0;
    for table in tables {
        let field = table.required("name");
        let name = field.and_then(Field::text).unwrap_or_default().to_owned();
        let rule = RuleConfig::read(&table, &name, around);
        let Some(field) = field else { continue };
        if field.is_text()
            && let Err(error) = check_name(&name)
        {
            field.note(error);
        }
        for_all += usize::from(rule.as_ref().is_some_and(|rule| rule.conditions.is_empty()));
        if for_all == MAX_CHARGES + 1 {
            let text = format!("match: {for_all} rules have none; at most {MAX_CHARGES} may");
            field.note(text);
        }
        if !names.insert(name) {
            field.mistake("another rule has it already");
        }
        rules.extend(rule);
    }
    (rules, names)
}

impl RuleConfig {
    /// Returns the rule that a request contains as text, which is its name.
    pub fn of_text(rule: Rule) -> Self {
        let around = Surroundings {
            paths: Paths::default(),
            prefixes: Prefixes::default(),
            engine: &EngineConfig::Memory,
        };
        Self {
            name: rule.to_string(),
            group: None,
            rule,
            key: vec![KeyPart::client()],
            conditions: Vec::new(),
            cost: CostSource::Fixed(Cost::ONE),
            unit: None,
            min_cost: Cost::ONE,
            capacity: None,
            capacity_place: None,
            on_error: None,
            missing: OnMissing::Share,
            consistency: Consistency::Exact,
            exempt: Vec::new(),
            overrides: Arc::default(),
            terms: Arc::new(defaults(|table| Terms::read(table, &around))),
        }
    }

    fn read(table: &Table<'_>, name: &str, around: &Surroundings<'_>) -> Option<Self> {
        let terms = Terms::read(table, around);
        let rule = terms.own_limit(table);
        let conditions = |name| {
            let field = table.field(name);
            field
                .map(|field| conditions(field, around.paths))
                .unwrap_or_default()
        };
        let exempt = conditions("exempt");
        if let Some(field) = table.field("levels") {
            field.mistake("expected a list of tables in [[rule]]; a level has none");
        }
        let capacity = table.number("capacity", CAPACITIES);
        let key = table.field("key").and_then(key_parts);
        let consistency = table.choice("consistency", &CONSISTENCY);
        let mut config = Self {
            name: name.to_owned(),
            group: None,
            key: key.unwrap_or_else(|| vec![KeyPart::client()]),
            conditions: conditions("match"),
            min_cost: min_cost(table, &terms.cost, terms.max_cost),
            capacity: capacity.map(|capacity| capacity as usize),
            capacity_place: table.field("capacity").map(Field::span),
            on_error: table.choice("on_error", &OnError::NAMED),
            missing: table
                .choice("missing", &OnMissing::NAMED)
                .unwrap_or_default(),
            consistency: consistency.unwrap_or(Consistency::Exact),
            overrides: Arc::new(overrides(table, &exempt, &terms, around.paths)),
            exempt,
            cost: terms.cost.clone(),
            unit: table.field("unit").and_then(unit),
            rule: rule?,
            terms: Arc::new(terms),
        };
        config.check_engine(table, around.engine);
        config.check_concurrent(table);
        let lengths = client_lengths(&config.key).next();
        if let Some(lengths) = lengths {
            config.cut_clients(lengths.or(around.prefixes));
        }
        Some(config)
    }

    /// Reports what the engine cannot do for the rule.
    fn check_engine(&self, table: &Table<'_>, engine: &EngineConfig) {
        let limit = self.rule.limit();
        match engine {
            EngineConfig::Redis(_) => {
                table.only_if(false, "the engine in memory", &["on_expiry"]);
                let overrides = self.overrides.iter().map(|special| &special.rule);
                let mut rules = overrides.chain([&self.rule]);
                if let Some(field) = table.field("consistency")
                    && self.consistency == Consistency::Near
                    && let Some(error) = rules.find_map(|rule| earrrl_redis::check_near(rule).err())
                {
                    field.note(error);
                }
                return;
            }
            EngineConfig::State(state) if !state.accepts_other_rules && !limit.fits_words() => {
                let kept = match limit.largest_in_words() {
                    Some(largest) => format!("a quota of at most {largest}"),
                    None => {
                        "recent-average, token-bucket, gcra, fixed-window or sliding-counter".into()
                    }
                };
                if let Some(field) = table.field("limit") {
                    field.mistake(format!(
                        "no state file can keep `{}`; expected {kept}, or not_persisted = \"ok\" in [engine]",
                        self.rule
                    ));
                }
            }
            EngineConfig::State(_) | EngineConfig::Memory => {}
        }
        table.only_if(false, "redis in [engine]", &["consistency"]);
    }

    /// Reports fields that contradict a limit of concurrent: its places are for live holders, all of them known to one
    /// store.
    fn check_concurrent(&self, table: &Table<'_>) {
        let own = self.rule.limit().is_concurrent();
        let differs = |entry: &Override| entry.rule.limit().is_concurrent() != own;
        if let Some(field) = table.field("limit")
            && self.overrides.iter().any(differs)
        {
            field.mistake("expected concurrent for the rule and all its overrides, or for none");
        }
        if let Some(field) = table.field("on_expiry")
            && own
            && field.text() == Some("keep")
        {
            field.mistake("concurrent always releases, as places are for live holders");
        }
        if let Some(field) = table.field("consistency")
            && own
            && self.consistency == Consistency::Near
        {
            field.mistake("concurrent is always exact");
        }
    }
}
