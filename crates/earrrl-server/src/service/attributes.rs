//! The attributes of one request, such as its path, its host and the address of its client.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::error::AskError;
use crate::config::attribute::{Condition, KeyPart, attribute_name, normal_host};
use earrrl_tower::path::{OtherReadings, Paths};
use earrrl_tower::{Alternative, ClientAddress, ClientLengths, Prefixes, address};

/// The largest number of attributes that a caller may name in one request.
pub const MAX_ATTRIBUTES: usize = 64;

/// The largest number of characters of a name in an error or in the log.
const MAX_SHOWN: usize = 64;

/// The settings for reading the attributes of requests.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Finds a client's address in requests that come through proxies.
    pub client_address: ClientAddress,
    /// The settings for comparing paths.
    pub paths: Paths,
}

/// The name and the value of an attribute.
pub type Attribute<'a> = (Cow<'a, str>, Cow<'a, [u8]>);

/// The attributes of a request, with path, host and method normalized. Values are bytes, since
/// clients choose many of them and need not send UTF-8. The attribute `client` is the address that
/// trusted proxies report; in a key it is cut to the address prefix that counts as one client.
#[derive(Debug, Default)]
pub struct Attributes<'a> {
    pairs: SmallVec<[Attribute<'a>; 8]>,
    other_paths: OtherReadings,
    client_key: Option<String>,
    prefixes: Prefixes,
}

impl<'a> Attributes<'a> {
    /// Creates the attributes of a request from pairs of name and value.
    pub fn new(pairs: impl IntoIterator<Item = Attribute<'a>>, reading: &ReadOptions) -> Self {
        let mut attributes = Self {
            pairs: pairs.into_iter().collect(),
            prefixes: reading.client_address.client_prefixes(),
            ..Self::default()
        };
        for (name, value) in &mut attributes.pairs {
            // Callers may spell a name as the configuration does.
            if name.starts_with("attribute:")
                && let Ok(known) = attribute_name(name)
            {
                *name = known.into();
            }
            match &**name {
                "path" => {
                    attributes.other_paths = reading.paths.others(value);
                    normalize(value, reading.paths);
                }
                "host" => *value = normal_host(std::mem::take(value)),
                "method" if value.iter().any(u8::is_ascii_lowercase) => {
                    value.to_mut().make_ascii_uppercase();
                }
                header
                    if header.starts_with("header:")
                        && header.bytes().any(|byte| byte.is_ascii_uppercase()) =>
                {
                    name.to_mut().make_ascii_lowercase();
                }
                _ => {}
            }
        }
        attributes.resolve_client(&reading.client_address);
        attributes
    }

    /// Creates the attributes that a caller names.
    ///
    /// # Errors
    /// Returns an error if a name occurs twice: it would be unclear which value counts. Only headers may,
    /// since clients may repeat them.
    pub fn named(
        pairs: impl IntoIterator<Item = Attribute<'a>>,
        reading: &ReadOptions,
    ) -> Result<Self, AskError> {
        let attributes = Self::new(pairs, reading);
        let names = || {
            attributes
                .names()
                .filter(|name| !name.starts_with("header:"))
        };
        let is_repeated = |(nth, name): &(usize, &str)| names().take(*nth).any(|one| one == *name);
        if let Some((_, name)) = names().enumerate().find(is_repeated) {
            let why = format!("attributes: `{}` is given twice; want it once", shown(name));
            return Err(AskError::Invalid(why));
        }
        Ok(attributes)
    }

    /// Returns the names of all attributes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|(name, _)| &**name)
    }

    /// Returns the first value of the attribute `name`; `None` if the request lacks it or has empty values alone.
    /// The two are one: a client may leave a header out, or send it empty, as it likes.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next()
    }

    /// Returns all values of the attribute `name` that are not empty.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.pairs
            .iter()
            .filter(move |(known, value)| known == name && !value.is_empty())
            .map(|(_, value)| &**value)
    }

    /// Returns the first value of the attribute `name`, which is empty if the request lacks it. Conditions
    /// are about this value.
    pub fn value(&self, name: &str) -> &[u8] {
        self.get(name).unwrap_or_default()
    }

    /// Returns true if the request meets a condition. A condition on the path is met if any
    /// reading of the path meets it.
    pub fn meet(&self, condition: &Condition) -> bool {
        condition.holds(self.value(&condition.attribute))
            || (condition.attribute == "path"
                && self
                    .paths()
                    .is_none_or(|mut paths| paths.any(|path| condition.holds(path))))
    }

    /// Returns the possible readings of the request's path; `None` if the path is too long and
    /// unusual to list them.
    pub fn paths(&self) -> Option<impl Iterator<Item = &[u8]>> {
        self.other_paths.with(self.get("path").unwrap_or_default())
    }

    /// Returns true if the request meets a condition under every reading of its path. Exemptions
    /// and overrides use this method, so that a client cannot obtain them with an ambiguous path.
    pub fn surely_meet(&self, condition: &Condition) -> bool {
        condition.holds(self.value(&condition.attribute))
            && (condition.attribute != "path"
                || self
                    .paths()
                    .is_some_and(|mut paths| paths.all(|path| condition.holds(path))))
    }

    /// Returns one part of the key of a rule with these conditions, and the alternative that it is made of. A missing
    /// attribute is an empty part: all requests that lack it count as one client, so that omitting it evades no limit.
    pub fn part<'s>(
        &'s self,
        part: &'s KeyPart,
        conditions: &[Condition],
    ) -> (Cow<'s, [u8]>, Option<&'s Alternative<String>>) {
        part.value(|one| match one {
            Alternative::Literal(text) => Some(text.as_bytes().into()),
            Alternative::Client(lengths) => self.client_part(*lengths),
            Alternative::Attribute(name) if name == "path" => {
                let path = self.path_key(conditions);
                (!path.is_empty()).then_some(path.into())
            }
            Alternative::Attribute(name) => self.get(name).map(Cow::from),
        })
    }

    /// Returns the client's address, cut to these lengths; or the client as the caller names it, if that is no address.
    fn client_part(&self, lengths: ClientLengths) -> Option<Cow<'_, [u8]>> {
        let client = self.get("client")?;
        let mut cut = Vec::new();
        match &self.client_key {
            Some(usual) if lengths == ClientLengths::default() => Some(usual.as_bytes().into()),
            _ => {
                let prefixes = lengths.or(self.prefixes);
                let is_address = prefixes.key_of_address(client, &mut cut).is_some();
                Some(if is_address {
                    cut.into()
                } else {
                    client.into()
                })
            }
        }
    }

    /// Returns the path as a part of a key under a rule with these conditions.
    fn path_key(&self, conditions: &[Condition]) -> &[u8] {
        let on_path = |condition: &&Condition| condition.attribute == "path";
        let meets = |path: &[u8]| conditions.iter().filter(on_path).all(|one| one.holds(path));
        let path = self.value("path");
        self.other_paths.key(path, meets)
    }

    fn resolve_client(&mut self, settings: &ClientAddress) {
        let client = str::from_utf8(self.value("client")).unwrap_or_default();
        let Some(peer) = address::parse(client.trim()) else {
            return;
        };
        let header = settings.header();
        let is_it = |name: &str| name.strip_prefix("header:") == Some(header);
        let reported = self.pairs.iter().find(|(name, _)| is_it(name));
        let reported = reported.map_or(&[][..], |(_, value)| value);
        let reported = String::from_utf8_lossy(reported);
        let client = settings
            .resolve_value(Some(peer), &reported)
            .unwrap_or(peer);
        self.client_key = Some(settings.client_prefixes().key(client));
        if let Some((_, value)) = self.pairs.iter_mut().find(|(name, _)| name == "client") {
            *value = Cow::Owned(address::text(client).into_bytes());
        }
    }
}

/// Returns the beginning of a text that a request has sent, for an error or the log.
pub(crate) fn shown(name: &str) -> String {
    name.escape_debug().take(MAX_SHOWN).collect()
}

/// Converts a text to bytes, the type of attributes' values.
pub fn bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

fn normalize(path: &mut Cow<'_, [u8]>, paths: Paths) {
    *path = match std::mem::take(path) {
        Cow::Borrowed(bytes) => paths.normalize(bytes),
        Cow::Owned(bytes) => Cow::Owned(paths.normalize(&bytes).into_owned()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes<'a>(
        pairs: &[(&'a str, &'a str)],
        client_address: ClientAddress,
    ) -> Attributes<'a> {
        let reading = ReadOptions {
            client_address,
            paths: Paths::default(),
        };
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), value.as_bytes().into()));
        Attributes::new(pairs, &reading)
    }

    fn settings(proxies: &[&str], hops: usize) -> ClientAddress {
        let none = ClientAddress::default().hops(hops);
        proxies
            .iter()
            .fold(none, |address, net| address.trust(net.parse().unwrap()))
    }

    #[test]
    fn a_caller_names_an_attribute_once() {
        let reading = ReadOptions::default();
        let named = |names: &[&'static str]| {
            let pairs = names.iter().map(|name| ((*name).into(), b"x"[..].into()));
            Attributes::named(pairs, &reading).map_err(|error| error.to_string())
        };
        assert!(named(&["path", "client", "header:x-cost", "header:X-Cost"]).is_ok());
        for twice in [["path", "path"], ["tokens", "attribute:tokens"]] {
            let error = named(&[&["client"][..], &twice].concat()).unwrap_err();
            assert_eq!(
                error,
                format!("attributes: `{}` is given twice; want it once", twice[0])
            );
        }
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let cases = [
            (settings(&[], 0), "192.0.2.7", "198.51.100.1", "192.0.2.7"),
            (
                settings(&["10.0.0.0/8"], 0),
                "10.0.0.1",
                "198.51.100.1",
                "198.51.100.1",
            ),
            (
                settings(&["10.0.0.0/8"], 0),
                "192.0.2.7",
                "198.51.100.1",
                "192.0.2.7",
            ),
            (
                settings(&["10.0.0.0/8"], 0),
                "10.0.0.1",
                "6.6.6.6, 198.51.100.1, 10.0.0.2",
                "198.51.100.1",
            ),
            (
                settings(&["10.0.0.0/8"], 0),
                "10.0.0.1",
                "6.6.6.6, junk, 10.0.0.2",
                "10.0.0.2",
            ),
            (settings(&["10.0.0.0/8"], 0), "10.0.0.1", "", "10.0.0.1"),
            (
                settings(&[], 1),
                "10.0.0.1",
                "6.6.6.6, 198.51.100.1",
                "198.51.100.1",
            ),
            (
                settings(&[], 2),
                "10.0.0.1",
                "6.6.6.6, 198.51.100.1, 10.0.0.2",
                "198.51.100.1",
            ),
            (settings(&[], 3), "10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ];
        for (settings, peer, forwarded, client) in cases {
            let found = attributes(
                &[("client", peer), ("header:X-Forwarded-For", forwarded)],
                settings,
            );
            assert_eq!(
                found.get("client"),
                Some(client.as_bytes()),
                "{peer} {forwarded}"
            );
        }
    }

    #[test]
    fn a_client_is_a_prefix() {
        let part = KeyPart::client();
        for (client, key) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7:4711", "192.0.2.7"),
            ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
            ("[2001:db8::1]:443", "2001:db8::/64"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("not an address", "not an address"),
        ] {
            let found = attributes(&[("client", client)], ClientAddress::default());
            assert_eq!(*found.part(&part, &[]).0, *key.as_bytes(), "{client}");
        }
    }

    #[test]
    fn missing_attributes_make_one_client() {
        let found = attributes(&[("path", "/a?b=c")], ClientAddress::default());
        let part = KeyPart::parse("user", |name| Ok(name.to_owned())).unwrap();
        assert_eq!(found.part(&part, &[]), (Cow::default(), None));
        assert_eq!(found.get("path"), Some(&b"/a"[..]));
    }

    /// `/x/..%2flogin` is `/login` to some servers, and a file below `/x` to others.
    #[test]
    fn an_ambiguous_path_meets_what_any_reading_meets_and_is_exempt_where_all_are() {
        let reading = ReadOptions {
            paths: Paths::TOLERANT,
            ..ReadOptions::default()
        };
        let of = |path: &'static str| {
            Attributes::new([("path".into(), path.as_bytes().into())], &reading)
        };
        let login = Condition::new("path", "/login", Paths::TOLERANT).unwrap();
        let below_x = Condition::new("path", "/x/*", Paths::TOLERANT).unwrap();
        let both = of("/x/..%2flogin");
        assert!(both.meet(&login) && both.meet(&below_x));
        assert!(!both.surely_meet(&login) && !both.surely_meet(&below_x));
        let plain = of("/LOGIN/");
        assert!(plain.meet(&login) && plain.surely_meet(&login) && !plain.meet(&below_x));
        let long = format!("/{}", "%2f".repeat(5000)).leak();
        assert!(of(long).meet(&login) && !of(long).surely_meet(&login));
    }

    /// If two spellings of a path had two keys, a client would have a quota for each spelling.
    #[test]
    fn every_spelling_of_a_path_is_one_key() {
        let reading = ReadOptions {
            paths: Paths::TOLERANT,
            ..ReadOptions::default()
        };
        let login = [Condition::new("path", "/login", Paths::TOLERANT).unwrap()];
        let below = [Condition::new("path", "/shop/*", Paths::TOLERANT).unwrap()];
        let key = |path: &str, conditions: &[Condition]| {
            let path = Cow::Owned(path.as_bytes().to_vec());
            let request = Attributes::new([("path".into(), path)], &reading);
            String::from_utf8(request.path_key(conditions).to_vec()).unwrap()
        };
        for path in [
            "/login",
            "//h1/login",
            "/a1.php/login",
            "/login%0a",
            "/x/..%2flogin",
            "/Login/",
        ] {
            assert_eq!(
                (key(path, &login), key(path, &[])),
                ("/login".into(), "/login".into())
            );
        }
        for path in [
            "/shop/7",
            "//h1/shop/7",
            "/index.php/shop/7",
            "/shop/7%0A",
            "/shop/x/..%2f7",
        ] {
            assert_eq!(key(path, &below), "/shop/7", "{path}");
        }
        assert_eq!(key("/login.php/any", &[]), "/any");
        let script = [Condition::new("path", "/login.php", Paths::TOLERANT).unwrap()];
        assert_eq!(key("/login.php/any", &script), "/login.php");
        assert_eq!(key(&format!("/{}", "%2f".repeat(5000)), &login), "");
    }

    #[test]
    fn hosts_have_one_form() {
        for (host, form) in [
            ("shop.example", "shop.example"),
            ("Shop.Example:8080", "shop.example"),
            ("shop.example.", "shop.example"),
            ("shop.example.:80", "shop.example"),
            ("shop.example:", "shop.example"),
            ("[::1]:80", "[::1]"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
            ("a:b", "a:b"),
            (".", ""),
            ("", ""),
        ] {
            let found = attributes(&[("host", host)], ClientAddress::default());
            assert_eq!(found.value("host"), form.as_bytes(), "{host}");
        }
    }

    #[test]
    fn paths_and_methods_have_one_form() {
        let pairs = [
            ("attribute:path", "//a/%6cogin?b=c"),
            ("method", "post"),
            ("user", "Alice"),
            ("attribute:tokens", "5"),
            ("attribute:header:X-Plan", "pro"),
            ("attribute:", "1"),
        ];
        let found = attributes(&pairs, ClientAddress::default());
        assert_eq!(found.get("path"), Some(&b"/a/login"[..]));
        assert_eq!(found.get("method"), Some(&b"POST"[..]));
        assert_eq!(found.get("user"), Some(&b"Alice"[..]));
        let names: Vec<&str> = found.names().collect();
        assert_eq!(names[3..], ["tokens", "header:x-plan", "attribute:"]);
    }
}
