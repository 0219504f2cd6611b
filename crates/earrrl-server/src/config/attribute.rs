//! The attributes of requests, as rules name and match them.

mod name;

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::table::{Field, Table};
use earrrl_tower::address::{canonical_network, parse};
use earrrl_tower::path::Paths;
use earrrl_tower::{Alternative, ClientLengths, Prefixes};

pub use self::name::{PLAIN, attribute_name, normal_host};

/// The largest number of parts that the key of a rule may have.
const MAX_LEN: usize = 64;
/// The largest number of values that a condition may list.
const MAX_VALUES: usize = 1000;

/// A part of the key by which a rule tells clients apart.
pub type KeyPart = earrrl_tower::KeyPart<String>;

/// A value or network that a condition names. The index of conditions finds the condition by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexKey<'a> {
    Text(&'a str),
    Network(IpNet),
}

/// A condition on an attribute: its value must match one of the patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The attribute's name.
    pub attribute: String,
    patterns: Vec<ValuePattern>,
    /// The networks of the patterns, joined and in their order, in which an address is found by a binary search: the
    /// rules that `earrrl suggest` writes name a thousand.
    networks: Vec<IpNet>,
    /// False if all patterns are networks.
    has_texts: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValuePattern {
    Exact(String),
    Prefix(String),
    /// A path and all paths below it match.
    Below(String),
    /// Addresses of a network match. The first is the network as configured, the second the same
    /// network shortened to the prefix that identifies clients.
    Network(IpNet, IpNet),
}

impl Condition {
    /// Creates a condition on an attribute. A `*` at the end of `text` matches any text there.
    ///
    /// # Errors
    /// Returns a sentence about the expected form if `text` is not a valid value of this attribute.
    pub fn new(attribute: &str, text: &str, paths: Paths) -> Result<Self, String> {
        let patterns = vec![ValuePattern::new(attribute, text, paths)?];
        Ok(Self::of(attribute, patterns))
    }

    fn of(attribute: &str, patterns: Vec<ValuePattern>) -> Self {
        let networks = patterns.iter().filter_map(|pattern| match pattern {
            ValuePattern::Network(_, meant) => Some(*meant),
            _ => None,
        });
        let networks: Vec<IpNet> = networks.collect();
        Self {
            attribute: attribute.to_owned(),
            has_texts: networks.len() < patterns.len(),
            networks: IpNet::aggregate(&networks),
            patterns,
        }
    }

    /// Creates the condition that only the requests of one client meet.
    ///
    /// # Errors
    /// Returns a sentence about the expected form if `text` is not a value of this attribute, or names several.
    pub(super) fn of_client(
        attribute: &str,
        text: &str,
        paths: Paths,
        prefixes: Prefixes,
    ) -> Result<Self, String> {
        let mut condition = Self::new(attribute, text, paths)?;
        condition.cut_clients(prefixes);
        let is_one = condition.patterns.iter().all(|pattern| match pattern {
            ValuePattern::Exact(text) => !text.is_empty(),
            ValuePattern::Network(given, meant) => *meant == prefixes.widen(given.addr().into()),
            ValuePattern::Prefix(_) | ValuePattern::Below(_) => false,
        });
        let several = || format!("`{}` is not the value of one client", text.escape_debug());
        is_one.then_some(condition).ok_or_else(several)
    }

    /// Shortens the condition's networks to the prefix that distinguishes clients, since a client's
    /// key contains only that prefix of the address.
    pub(super) fn cut_clients(&mut self, prefixes: Prefixes) {
        for pattern in &mut self.patterns {
            if let ValuePattern::Network(_, meant) = pattern {
                *meant = prefixes.widen(*meant);
            }
        }
        *self = Self::of(&self.attribute, std::mem::take(&mut self.patterns));
    }

    /// Returns true if an attribute's value meets the condition. An empty value stands for an attribute that the
    /// request lacks: only the pattern `""` matches it.
    pub fn holds(&self, value: &[u8]) -> bool {
        let matches = |pattern: &ValuePattern| pattern.matches(value);
        self.has_texts && self.patterns.iter().any(matches) || self.is_in_network(value)
    }

    fn is_in_network(&self, value: &[u8]) -> bool {
        if self.networks.is_empty() {
            return false;
        }
        address(value).is_some_and(|address| {
            let behind = self
                .networks
                .partition_point(|one| one.network() <= address);
            let nearest = behind.checked_sub(1).map(|at| self.networks[at]);
            nearest.is_some_and(|network| network.contains(&address))
        })
    }

    /// Returns true if all requests of HTTP meet the condition, or all of clients with an IPv4 or an IPv6
    /// address. Users and headers are different: many requests have none.
    pub(super) fn is_everybody(&self) -> bool {
        let names_all = |pattern: &ValuePattern| match pattern {
            ValuePattern::Prefix(prefix) => ["", "/"].contains(&&**prefix),
            ValuePattern::Below(path) => path.is_empty(),
            ValuePattern::Exact(_) | ValuePattern::Network(..) => false,
        };
        let networks = self.patterns.iter().filter_map(|pattern| match pattern {
            ValuePattern::Network(network, _) => Some(*network),
            _ => None,
        });
        let joined = IpNet::aggregate(&networks.collect());
        ["client", "method", "path", "host"].contains(&&*self.attribute)
            && (self.patterns.iter().any(names_all)
                || joined.iter().any(|all| all.prefix_len() == 0))
    }

    /// Returns the values that hardly any request has, each with the reason.
    pub(super) fn doubts(&self) -> impl Iterator<Item = (String, String)> {
        self.patterns.iter().filter_map(|pattern| {
            let (text, is_prefix) = match pattern {
                ValuePattern::Exact(text) => (text, false),
                ValuePattern::Prefix(text) | ValuePattern::Below(text) => (text, true),
                ValuePattern::Network(..) => return None,
            };
            let why = name::doubt(&self.attribute, text, is_prefix)?;
            Some((pattern.text(), why))
        })
    }

    /// Returns the values and networks that the condition names, or `None` if it also names a text
    /// prefix, which cannot be looked up.
    pub(super) fn index_keys(&self) -> Option<Vec<IndexKey<'_>>> {
        self.patterns.iter().map(ValuePattern::index_key).collect()
    }

    /// Returns the number of values that meet the condition, or `None` if it does not list them one
    /// by one.
    pub fn count(&self) -> Option<usize> {
        self.patterns
            .iter()
            .all(ValuePattern::is_one_value)
            .then_some(self.patterns.len())
    }

    /// Returns a value that meets this condition and every condition that [`covers`](Self::covers)
    /// it.
    pub(super) fn sample(&self) -> Option<String> {
        self.patterns.first().map(ValuePattern::sample)
    }

    /// Returns true if every value that meets `other` meets this condition.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let covered = |theirs| self.patterns.iter().any(|own| own.covers(theirs));
        self.attribute == other.attribute && other.patterns.iter().all(covered)
    }

    /// Returns a text that is unique to this condition and stays the same in later versions of the
    /// program: the parts of the condition, each preceded by its length.
    pub fn canonical(&self) -> String {
        let patterns = self.patterns.iter().map(ValuePattern::text);
        let parts = std::iter::once(self.attribute.clone()).chain(patterns);
        parts
            .map(|part| format!("{}:{part},", part.len()))
            .collect::<String>()
            + ";"
    }
}

/// Writes the condition in the notation of the configuration.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns: Vec<_> = self.patterns.iter().map(ValuePattern::text).collect();
        match &patterns[..] {
            [one] => write!(f, "{} = {one:?}", self.attribute),
            several => write!(f, "{} = {several:?}", self.attribute),
        }
    }
}

impl ValuePattern {
    fn new(attribute: &str, text: &str, paths: Paths) -> Result<Self, String> {
        let pattern = Self::parse(attribute, text, paths);
        pattern.map_err(|why| format!("`{}`: {why}", text.escape_debug()))
    }

    /// Parses a pattern; the error does not repeat the text.
    fn parse(attribute: &str, text: &str, paths: Paths) -> Result<Self, String> {
        if attribute == "client"
            && let Some(network) = network(text)
        {
            return Ok(Self::Network(network, network));
        }
        let (before, is_prefix) = match text.split_once('*') {
            None => (text, false),
            Some((before, "")) => (before, true),
            Some(_) => return Err("`*` may stand at the end only".to_owned()),
        };
        match attribute {
            "client" if is_prefix && name::begins_address(before) => {}
            _ => name::check(attribute, before)?,
        }
        if attribute == "host" && !is_prefix {
            let lower = text.to_ascii_lowercase();
            let host = String::from_utf8_lossy(&normal_host(lower.as_bytes().into())).into_owned();
            if host != lower {
                let host = host.escape_debug();
                return Err(format!(
                    "requests have a host without port and last dot; want `{host}`"
                ));
            }
        }
        let before = match attribute {
            "path" if !text.is_empty() && !before.starts_with('/') && text != "*" => {
                return Err("expected a path that begins with `/`, as \"/login\"".to_owned());
            }
            "path" if text.is_empty() => String::new(),
            "path" if text.contains(['?', '#']) => {
                let why = "a path ends before `?` and `#`; write them as %3F and %23";
                return Err(why.to_owned());
            }
            "path" if is_prefix => paths.normalize_prefix(before),
            "path" => paths.normalize_text(before),
            "method" => before.to_ascii_uppercase(),
            "host" => before.to_ascii_lowercase(),
            _ => before.to_owned(),
        };
        Ok(match (is_prefix, before.strip_suffix('/')) {
            (false, _) => Self::Exact(before),
            // With this setting, normalized paths of requests have no slash at the end.
            (true, Some(bare)) if paths.ignore_trailing_slash && attribute == "path" => {
                Self::Below(bare.to_owned())
            }
            (true, _) => Self::Prefix(before),
        })
    }

    /// Returns the pattern in the notation of the configuration.
    fn text(&self) -> String {
        match self {
            Self::Exact(text) => text.clone(),
            Self::Prefix(prefix) => format!("{prefix}*"),
            Self::Below(path) => format!("{path}/*"),
            Self::Network(network, _) => network.to_string(),
        }
    }

    fn index_key(&self) -> Option<IndexKey<'_>> {
        match self {
            Self::Exact(text) => Some(IndexKey::Text(text)),
            Self::Network(_, network) => Some(IndexKey::Network(*network)),
            Self::Prefix(_) | Self::Below(_) => None,
        }
    }

    fn is_one_value(&self) -> bool {
        match self {
            Self::Exact(_) => true,
            Self::Network(_, network) => network.prefix_len() == network.max_prefix_len(),
            Self::Prefix(_) | Self::Below(_) => false,
        }
    }

    fn sample(&self) -> String {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Below(text) => text.clone(),
            Self::Network(_, network) => network.network().to_string(),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Network(_, own), Self::Network(_, other)) => own.contains(other),
            (Self::Prefix(_), Self::Exact(text)) => self.matches(text.as_bytes()),
            (Self::Prefix(prefix), Self::Prefix(text) | Self::Below(text)) => {
                text.starts_with(prefix)
            }
            (own, other) => own == other,
        }
    }

    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => text.as_bytes() == value,
            _ if value.is_empty() => false,
            Self::Prefix(prefix) => value.starts_with(prefix.as_bytes()),
            Self::Below(path) => {
                let rest = value.strip_prefix(path.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            }
            // The networks of all patterns are looked up together.
            Self::Network(..) => false,
        }
    }
}

/// Parses the address of a client from a key. If clients are networks, the key has the prefix of
/// the network, and its first address is returned.
pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    let address = value.split(|byte| *byte == b'/').next().unwrap_or_default();
    str::from_utf8(address).ok().and_then(parse)
}

fn key_part(text: &str) -> Result<KeyPart, String> {
    KeyPart::parse(text, |name| {
        let name = attribute_name(name);
        name.map_err(|why| format!("{why}; a fixed text is in quotes, as \"'login'\""))
    })
}

/// Reads the `[attributes]` table, in which `path_matching` determines the defaults of the other settings.
pub(super) fn paths(table: &Table<'_>) -> Paths {
    let either =
        |name, [off, on]: [&'static str; 2]| table.choice(name, &[(off, false), (on, true)]);
    let tolerant = either("path_matching", ["exact", "tolerant"]).unwrap_or(true);
    let case = either("path_case", ["sensitive", "insensitive"]);
    let slash = either("trailing_slash", ["keep", "ignore"]);
    let parameters = either("path_parameters", ["keep", "ignore"]);
    Paths {
        ignore_case: case.unwrap_or(tolerant),
        ignore_trailing_slash: slash.unwrap_or(tolerant),
        ignore_parameters: parameters.unwrap_or(tolerant),
        all_readings: tolerant,
    }
}

/// Returns the parts of a rule's key.
pub(super) fn key_parts(field: Field<'_>) -> Option<Vec<KeyPart>> {
    let mut parts: Vec<KeyPart> = Vec::new();
    for (item, _) in field.texts(MAX_LEN)? {
        match item.checked(key_part) {
            Some(part) if parts.contains(&part) && part.attributes().next().is_some() => {
                item.mistake("that is there twice; once is enough");
            }
            part => parts.extend(part),
        }
    }
    let lengths: Vec<_> = client_lengths(&parts).collect();
    if lengths.iter().any(|length| *length != lengths[0]) {
        field
            .mistake("client is there with two lengths; want one, and a second rule for the other");
    }
    Some(parts)
}

/// Returns the lengths to which the parts of a key cut addresses of clients.
pub(super) fn client_lengths(parts: &[KeyPart]) -> impl Iterator<Item = ClientLengths> {
    let alternatives = parts.iter().flat_map(KeyPart::alternatives);
    alternatives.filter_map(|one| match one {
        Alternative::Client(lengths) => Some(*lengths),
        _ => None,
    })
}

/// Returns the conditions of `match`, `exempt` or an override's `key`.
pub(super) fn conditions(field: Field<'_>, paths: Paths) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for (name, values) in field.entries() {
        let attribute = match attribute_name(name.get_ref()) {
            Ok(attribute) => attribute,
            Err(why) => {
                field.mistake_at(name.span(), why);
                continue;
            }
        };
        let texts = values.texts(MAX_VALUES).unwrap_or_default().into_iter();
        let pattern = |text: &str| ValuePattern::new(&attribute, text, paths);
        let patterns = texts.filter_map(|(item, _)| item.checked(pattern));
        let patterns: Vec<_> = patterns.collect();
        if patterns.is_empty() {
            continue;
        }
        let condition = Condition::of(&attribute, patterns);
        if field.is_named("exempt") && condition.is_everybody() {
            values.mistake("that is everybody; name some, or remove the rule");
        }
        conditions.push(condition);
    }
    conditions
}

/// Parses a network or a single address; IPv4 addresses in IPv6 form count as IPv4.
pub(super) fn network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let network = text.parse().ok().or_else(address)?;
    Some(canonical_network(network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_a_list_if_they_are_in_one_of_its_networks() {
        let listed = [
            "10.0.0.0/8",
            "10.1.0.0/16",
            "192.0.2.7",
            "192.0.2.9",
            "198.51.100.0/25",
            "2001:db8::/32",
            "::1",
            "office*",
        ];
        let mut all = Condition::new("client", "10.2.0.0/16", Paths::default()).unwrap();
        let mut each = Vec::new();
        for text in listed {
            let one = Condition::new("client", text, Paths::default()).unwrap();
            all.patterns.extend(one.patterns.clone());
            each.push(one);
        }
        let all = Condition::of("client", all.patterns);
        for (value, is_in) in [
            ("10.255.0.1", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("192.0.2.9", true),
            ("198.51.100.127", true),
            ("198.51.100.128", false),
            ("2001:db8:7::/64", true),
            ("2001:db9::/64", false),
            ("::1", true),
            ("::2", false),
            ("office-7", true),
            ("offic", false),
            ("", false),
        ] {
            let in_one = each.iter().any(|one| one.holds(value.as_bytes()));
            assert_eq!(
                (all.holds(value.as_bytes()), in_one),
                (is_in, is_in),
                "{value}"
            );
        }
    }
}
