//! The state files of a directory as the source: the clients of all processes that share them.

use std::collections::BTreeMap;
use std::path::Path;

use earrrl::{BuildError, MemoryEngine, Rule, RuleId, StateDirectory, StateSummary, SystemClock};

use super::snapshot::{RuleCounts, TopRow, TopSnapshot};
use super::source::ClientSource;

/// The name of the file that holds a directory's hash key and clock.
const ROOT: &str = "_engine";

/// The rules of a directory. Only rules that have files when the directory is opened are shown.
pub(super) struct StoredSource {
    engine: MemoryEngine,
    rules: Vec<StoredRule>,
    status: String,
}

struct StoredRule {
    name: String,
    limit: String,
    id: RuleId,
}

impl StoredSource {
    /// Opens all files of a directory that an engine has made.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        let mut faults = Vec::new();
        // The latest generation of a file comes last.
        for file in StateDirectory::list(path).map_err(|error| error.to_string())? {
            match file {
                Ok(file) => drop(files.insert(file.name.clone(), file)),
                Err(error) => faults.push(error.to_string()),
            }
        }
        if files.remove(ROOT).is_none() {
            let expected = "expected the directory of `earrrl serve --state` or of an engine";
            faults.insert(
                0,
                format!("{}: no file `{ROOT}`; {expected}", path.display()),
            );
            return Err(faults.join("; "));
        }
        let engine = engine(path).map_err(|error| error.to_string())?;
        let mut rules = Vec::new();
        for file in files.into_values() {
            match prepare(&engine, &file) {
                Ok(id) => rules.push(StoredRule {
                    name: file.name,
                    limit: file.limit,
                    id,
                }),
                Err(error) => faults.push(error),
            }
        }
        let status = [vec!["state files".to_owned()], faults].concat().join("; ");
        Ok(Self {
            engine,
            rules,
            status,
        })
    }
}

fn engine(path: &Path) -> Result<MemoryEngine, BuildError> {
    let directory = StateDirectory::open(path)?;
    let clock = SystemClock::with_anchor(directory.anchor());
    MemoryEngine::in_directory(1, directory, clock)
}

fn prepare(engine: &MemoryEngine, file: &StateSummary) -> Result<RuleId, String> {
    let rule: Rule = file
        .limit
        .parse()
        .map_err(|error| format!("{}: {error}", file.path.display()))?;
    let capacity = usize::try_from(file.capacity).map_err(|error| error.to_string())?;
    engine
        .prepare_with(&file.name, &rule, capacity)
        .map_err(|error| error.to_string())
}

impl ClientSource for StoredSource {
    fn snapshot(&mut self, rule: Option<&str>, limit: usize) -> Result<TopSnapshot, String> {
        let shown = match rule {
            Some(name) => self.rules.iter().find(|rule| rule.name == name),
            None => self.rules.first(),
        };
        let shown = shown.ok_or_else(|| match rule {
            Some(name) => format!("no file of the rule {name:?}; {}", self.status),
            None => format!("no file of a rule; {}", self.status),
        })?;
        let top = self
            .engine
            .top(shown.id, limit)
            .map_err(|error| error.to_string())?;
        let counts = |rule: &StoredRule| {
            let name = rule.name.clone();
            let limit = rule.limit.clone();
            RuleCounts {
                name,
                limit,
                requests: None,
            }
        };
        Ok(TopSnapshot {
            rule: shown.name.clone(),
            rules: self.rules.iter().map(counts).collect(),
            clients: top
                .into_iter()
                .map(|figures| TopRow::of(figures, None))
                .collect(),
            status: self.status.clone(),
            names_are_keys: true,
        })
    }

    fn reset(&mut self, _rule: &str, _key: &[u8]) -> Result<(), String> {
        Err("the files contain no keys".to_owned())
    }
}
