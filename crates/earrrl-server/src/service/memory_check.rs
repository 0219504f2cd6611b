//! Checks that a configuration's tables fit into memory, without allocating them.

use std::ops::Range;

use earrrl::internal::{memory_in_all, table_bytes};
use earrrl_redis::WhenGone;

use super::descriptor_limits::DescriptorsPlan;
use super::rules;
use crate::config::{Config, EngineConfig};

/// The error for tables that together exceed the memory of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverMemory {
    /// A message that names the largest table, the memory it needs, and the memory of the machine.
    pub message: String,
    /// The position of the largest capacity in the configuration's text; `None` if no rule sets
    /// it.
    pub place: Option<Range<usize>>,
}

/// Returns an error if a configuration's tables exceed this machine's memory.
pub fn over_memory(config: &Config) -> Option<OverMemory> {
    memory_in_all().and_then(|memory| over_memory_of(config, memory))
}

fn over_memory_of(config: &Config, memory: u64) -> Option<OverMemory> {
    let tables = tables(config);
    let all: u64 = tables
        .iter()
        .fold(0, |sum, table| sum.saturating_add(table.bytes));
    let most = tables
        .into_iter()
        .max_by_key(|table| table.bytes)
        .filter(|_| all > memory)?;
    let (rule, place) = match config.rules.iter().find(|rule| rule.name == most.name) {
        Some(rule) => (
            format!("of rule {}", rule.name),
            rule.capacity_place.clone(),
        ),
        None => ("of [engine]".to_owned(), None),
    };
    let needs = gib(most.bytes);
    let all = gib(all);
    let memory = gib(memory);
    let message = format!(
        "capacity: the {} clients {rule} need {needs} GiB, all tables {all} GiB; \
         this machine has {memory} GiB: want fewer",
        most.clients
    );
    Some(OverMemory { message, place })
}

struct TableSize {
    name: String,
    clients: usize,
    bytes: u64,
}

impl TableSize {
    fn new(name: &str, clients: usize, bytes: Option<usize>) -> Self {
        let bytes = bytes.map_or(u64::MAX, |bytes| bytes as u64);
        Self {
            name: name.to_owned(),
            clients,
            bytes,
        }
    }
}

/// Returns the sizes of all tables that a server with this configuration would allocate.
fn tables(config: &Config) -> Vec<TableSize> {
    let rules = rules::RulesPlan::new(config);
    let descriptors = DescriptorsPlan::of_config(config, None).ok().flatten();
    let limits = rules
        .limits()
        .chain(descriptors.iter().flat_map(|plan| &plan.limits));
    let kept_here = match &config.engine {
        EngineConfig::Memory | EngineConfig::State(_) => true,
        EngineConfig::Redis(redis) => redis.options.when_gone == WhenGone::Local,
    };
    let limits = limits.filter(|_| kept_here);
    // A shared store allocates memory only as clients arrive.
    let limits = limits.filter(|limit| limit.store.is_none());
    let of_rules = limits.map(|limit| {
        let bytes = table_bytes(limit.rule.limit(), limit.capacity);
        TableSize::new(&limit.name, limit.capacity, bytes)
    });
    // The table of `CL.THROTTLE` has entries of the same size as that of a GCRA limit.
    let bucket = "gcra 1/s burst=1".parse::<earrrl::Rule>().ok();
    let words = bucket.map(|rule| table_bytes(rule.limit(), config.capacity));
    let throttle = words.map(|bytes| TableSize::new("CL.THROTTLE", config.capacity, bytes));
    of_rules.chain(throttle).collect()
}

/// Converts bytes to GiB, rounded up, so that a message never shows less memory needed than
/// available.
fn gib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_beyond_memory_are_reported_with_their_place() {
        let rule = |capacity: &str| {
            format!("[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=1\"\n{capacity}\n")
        };
        let found =
            |text: &str, gib: u64| over_memory_of(&Config::parse(text, "f").unwrap(), gib << 30);
        assert_eq!(found(&rule(""), 1), None);
        let text = rule("capacity = 1_000_000_000");
        let over = found(&text, 16).unwrap();
        assert_eq!(&text[over.place.unwrap()], "1_000_000_000");
        assert!(
            over.message
                .contains("the 1000000000 clients of rule a need 20 GiB")
        );
        assert_eq!(found(&text, 32), None);
        let logs = text.replace("gcra 1/s burst=1", "sliding-log 5/1m");
        assert_eq!(found(&logs, 1), None, "they take memory as they come");
        let engine = format!(
            "[engine]\ncapacity = 1_000_000_000\n{}",
            rule("capacity = 1")
        );
        let message = found(&engine, 1).unwrap().message;
        assert!(message.contains("of [engine]"), "{message}");
        let remote = "[engine]\nredis = \"redis://h\"\npolicy = \"deny\"\n".to_owned() + &text;
        assert_eq!(found(&remote, 1), None);
    }
}
