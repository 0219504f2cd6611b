//! The tree of descriptors, and the search for the limit of a request's descriptor.
//!
//! At each level an entry is looked up by its key, then by its value: first the exact value, then
//! wildcards in the order of the file, then the key alone. The search does not backtrack: it
//! follows the first match.
//!
//! The patterns for the values of descriptors are here too, in which `*` stands for any text.

use std::borrow::Cow;
use std::sync::Arc;

use foldhash::HashMap;
use smallvec::SmallVec;

use super::algorithm::EnvoyAlgorithm;
use super::file::{DescriptorConfig, DomainConfig, LimitConfig, level_name};
use crate::config::yaml::Position;
use crate::config::{ConfigError, ConfigProblem};

/// The largest number of descriptors in all domains together.
pub const MAX_DESCRIPTORS: usize = 100_000;

/// The descriptors of all domains.
#[derive(Debug, Default)]
pub struct Tree {
    domains: HashMap<Box<str>, Level>,
    limits: Vec<Arc<TreeLimit>>,
    descriptors: usize,
}

/// A limit, and the keys and values of the descriptors that lead to it.
#[derive(Clone, Debug)]
pub struct TreeLimit {
    /// The file that contains the limit.
    pub source: Arc<str>,
    /// The position of the limit in that file.
    pub place: Position,
    /// The domain that the limit belongs to.
    pub domain: Arc<str>,
    /// The keys and values of all levels, from the first level to that of the limit.
    pub path: Box<[PathPart]>,
    /// The limit and its options, as configured.
    pub config: LimitConfig,
    /// True if the names of the limit's metrics contain the values of requests.
    pub detailed_metric: bool,
    /// The dynamic metadata that responses for this limit contain.
    pub metadata: Option<Box<serde_json::Map<String, serde_json::Value>>>,
}

/// One level of the path that leads to a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPart {
    /// The key of the level.
    pub key: Box<str>,
    /// The value of the level, as written in the file; empty for any value.
    pub value: Box<str>,
    /// True if all values that match this level share one counter.
    pub share: bool,
    /// True if the names of metrics contain the value that the request has at this level.
    pub value_to_metric: bool,
}

impl PathPart {
    /// Returns true if each value that matches this level has a counter of its own.
    pub fn is_open(&self) -> bool {
        !self.share && (self.value.is_empty() || self.value.contains('*'))
    }
}

impl TreeLimit {
    /// Returns true if the names of the limit's metrics contain values of requests.
    pub fn is_named_by_requests(&self) -> bool {
        let names = |part: &PathPart| self.detailed_metric || part.value_to_metric;
        self.path.iter().any(|part| part.is_open() && names(part))
    }

    /// Returns the name of the limit in the metrics of envoyproxy/ratelimit: the domain, then each
    /// level.
    pub fn metric_key(&self) -> Vec<String> {
        self.metric_key_of(self.path.iter().map(|part| Cow::Borrowed(&*part.value)))
    }

    /// Returns the [`TreeLimit::metric_key`] for a request whose entries have these values.
    pub fn metric_key_of<'a>(&self, values: impl Iterator<Item = Cow<'a, str>>) -> Vec<String> {
        let level = |(part, value): (&PathPart, Cow<'_, str>)| {
            let by_request = part.is_open() && (self.detailed_metric || part.value_to_metric);
            level_name(&part.key, if by_request { &value } else { &part.value })
        };
        let levels = self.path.iter().zip(values).map(level);
        std::iter::once(self.domain.to_string())
            .chain(levels)
            .collect()
    }
}

#[derive(Debug, Default)]
struct Level(HashMap<Box<str>, Branch>);

/// The nodes of one level that have the same key.
#[derive(Debug, Default)]
struct Branch {
    exact: HashMap<Box<str>, TreeNode>,
    wildcards: Vec<(Wildcard, TreeNode)>,
    key_alone: Option<Box<TreeNode>>,
}

#[derive(Debug, Default)]
struct TreeNode {
    next: Level,
    limit: Option<usize>,
    share: bool,
}

/// The descriptors that a request's descriptor matched, level by level.
#[derive(Debug)]
pub struct Walk<'t> {
    /// True if the request's domain is configured.
    pub domain: bool,
    /// The matches of the request's entries, up to the first entry that matched nothing.
    pub steps: SmallVec<[WalkStep<'t>; 4]>,
    /// The index of the limit in [`Tree::limits`], if the last entry matched a descriptor with a
    /// limit.
    pub limit: Option<usize>,
}

/// The match of one entry of a request's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkStep<'t> {
    /// The way in which the entry matched.
    pub matched: Matched<'t>,
    /// True if all values that match share one counter.
    pub share: bool,
}

/// The ways in which an entry can match, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched<'t> {
    /// The key and the value are equal to the entry's.
    Exact,
    /// The key is equal, and the value matches this wildcard.
    Wildcard(&'t str),
    /// The key is equal, and the descriptor accepts any value.
    Key,
}

impl Tree {
    /// Creates the tree of several files. If `merge` is true, several files may have the same
    /// domain.
    ///
    /// # Errors
    /// Returns an error if a domain or a descriptor occurs twice.
    pub fn new(files: &[DomainConfig], merge: bool) -> Result<Self, ConfigError> {
        let mut tree = Self::default();
        for file in files {
            let mut problems = Vec::new();
            let known = tree.domains.remove(&*file.domain);
            if known.is_some() && !merge {
                let text = format!("duplicate domain '{}' in config file", file.domain);
                problems.push(file.place.problem(text));
            }
            let mut level = known.unwrap_or_default();
            let mut path = Vec::new();
            tree.add(
                &mut level,
                file,
                &file.descriptors,
                &mut path,
                &mut problems,
            );
            tree.domains.insert((&*file.domain).into(), level);
            if !problems.is_empty() {
                return Err(ConfigError {
                    name: file.source.to_string(),
                    problems,
                });
            }
        }
        Ok(tree)
    }

    /// Returns all limits, in the order of the files.
    pub fn limits(&self) -> &[Arc<TreeLimit>] {
        &self.limits
    }

    /// Returns true if there are no domains.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Returns the number of domains.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// Returns true if there is a domain of this name.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Checks that every limit can be enforced with this algorithm.
    ///
    /// # Errors
    /// Returns the error of the first limit that the algorithm cannot enforce.
    pub fn check(&self, algorithm: EnvoyAlgorithm) -> Result<(), ConfigError> {
        for limit in &self.limits {
            if let Err(error) = limit.config.rule(algorithm) {
                let problems = vec![limit.place.problem(error.to_string())];
                return Err(ConfigError {
                    name: limit.source.to_string(),
                    problems,
                });
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        level: &mut Level,
        file: &DomainConfig,
        descriptors: &[DescriptorConfig],
        path: &mut Vec<PathPart>,
        problems: &mut Vec<ConfigProblem>,
    ) {
        for descriptor in descriptors {
            self.descriptors += 1;
            if self.descriptors == MAX_DESCRIPTORS + 1 {
                let text = format!("more than {MAX_DESCRIPTORS} descriptors");
                problems.push(descriptor.place.problem(text));
            }
            path.push(PathPart {
                key: descriptor.key.as_str().into(),
                value: descriptor.value.as_str().into(),
                share: descriptor.share_threshold,
                value_to_metric: descriptor.value_to_metric,
            });
            let mut node = TreeNode {
                limit: self.add_limit(file, descriptor, path),
                share: descriptor.share_threshold,
                next: Level::default(),
            };
            self.add(
                &mut node.next,
                file,
                &descriptor.descriptors,
                path,
                problems,
            );
            if !level.insert(descriptor, node) {
                let name = composite_name(&file.domain, path);
                let text = format!("duplicate descriptor composite key '{name}'");
                problems.push(descriptor.place.problem(text));
            }
            path.pop();
        }
    }

    fn add_limit(
        &mut self,
        file: &DomainConfig,
        descriptor: &DescriptorConfig,
        path: &[PathPart],
    ) -> Option<usize> {
        self.limits.push(Arc::new(TreeLimit {
            source: Arc::clone(&file.source),
            place: descriptor.place,
            domain: Arc::clone(&file.domain),
            path: path.into(),
            config: descriptor.limit.clone()?,
            detailed_metric: descriptor.detailed_metric,
            metadata: (!descriptor.metadata.is_empty())
                .then(|| Box::new(descriptor.metadata.clone())),
        }));
        Some(self.limits.len() - 1)
    }

    /// Matches a descriptor's entries level by level. A limit applies only at the level of the last
    /// entry.
    pub fn walk<'a>(
        &self,
        domain: &str,
        entries: impl ExactSizeIterator<Item = (&'a str, impl AsRef<str>)>,
    ) -> Walk<'_> {
        let first = self.domains.get(domain);
        let mut walk = Walk {
            domain: first.is_some(),
            steps: SmallVec::new(),
            limit: None,
        };
        let mut level = first;
        let count = entries.len();
        for (place, (key, value)) in entries.enumerate() {
            let Some((node, matched)) = level.and_then(|level| level.find(key, value.as_ref()))
            else {
                break;
            };
            walk.steps.push(WalkStep {
                matched,
                share: node.share,
            });
            walk.limit = node.limit.filter(|_| place + 1 == count);
            level = Some(&node.next);
        }
        walk
    }
}

impl Level {
    /// Adds the node of a descriptor; returns false if an equal descriptor is already present.
    fn insert(&mut self, descriptor: &DescriptorConfig, node: TreeNode) -> bool {
        let branch = self.0.entry(descriptor.key.as_str().into()).or_default();
        let value = descriptor.value.as_str();
        if value.is_empty() {
            return branch.key_alone.replace(Box::new(node)).is_none();
        }
        let Some(wildcard) = Wildcard::new(value) else {
            return branch.exact.insert(value.into(), node).is_none();
        };
        let fresh = branch.wildcards.iter().all(|(other, _)| *other != wildcard);
        branch.wildcards.push((wildcard, node));
        fresh
    }

    fn find(&self, key: &str, value: &str) -> Option<(&TreeNode, Matched<'_>)> {
        let branch = self.0.get(key)?;
        if let Some(node) = branch.exact.get(value) {
            return Some((node, Matched::Exact));
        }
        let wildcard = branch
            .wildcards
            .iter()
            .find(|(wildcard, _)| wildcard.matches(value));
        if let Some((wildcard, node)) = wildcard {
            return Some((node, Matched::Wildcard(wildcard.text())));
        }
        branch.key_alone.as_deref().map(|node| (node, Matched::Key))
    }
}

/// Returns the name that envoyproxy/ratelimit gives to a descriptor: `domain.key1_value1.key2`.
fn composite_name(domain: &str, path: &[PathPart]) -> String {
    let levels = path.iter().map(|part| level_name(&part.key, &part.value));
    levels.fold(domain.to_owned(), |name, level| name + "." + &level)
}

/// A pattern in which each `*` stands for zero or more characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wildcard {
    text: Box<str>,
    pieces: Box<[Box<str>]>,
}

impl Wildcard {
    /// Creates the pattern of a text; `None` if the text contains no `*`.
    pub fn new(text: &str) -> Option<Self> {
        let pieces = text
            .contains('*')
            .then(|| text.split('*').map(Into::into).collect())?;
        Some(Self {
            text: text.into(),
            pieces,
        })
    }

    /// Returns the pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if `value` matches: it begins with the text before the first `*`, ends with the
    /// text after the last one, and contains the texts between in order.
    pub fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = &*self.pieces else {
            return false;
        };
        let rest = value
            .strip_prefix(&**first)
            .and_then(|rest| rest.strip_suffix(&**last));
        let after =
            |rest: &'_ str, piece: &str| rest.find(piece).map(|at| rest.len() - at - piece.len());
        let Some(mut rest) = rest else { return false };
        for piece in middle {
            match after(rest, piece) {
                Some(left) => rest = &rest[rest.len() - left..],
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_anchored_and_in_order() {
        for (pattern, value, expected) in [
            ("foo*", "foo", true),
            ("foo*", "foobar", true),
            ("foo*", "fo", false),
            ("*", "", true),
            ("*", "anything", true),
            ("*.com", "a.com", true),
            ("*.com", "a.com.org", false),
            ("a*b", "ab", true),
            ("a*a", "a", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*bc*c", "abc", false),
            ("/v*/u/*/x", "/v2/u/7/x", true),
            ("/v*/u/*/x", "/v2/u/x", false),
            ("**", "", true),
            ("é*", "éa", true),
        ] {
            let wildcard = Wildcard::new(pattern).unwrap();
            assert_eq!(wildcard.matches(value), expected, "{pattern} {value}");
        }
        assert_eq!(Wildcard::new("plain"), None);
    }
}
