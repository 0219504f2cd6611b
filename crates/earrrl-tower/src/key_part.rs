//! Parts of keys as texts, such as `client`, `client/24` and `header:x-user | client`.
//!
//! This is the grammar of the server's configuration, of the layer, and of the Python and Node packages. They differ in
//! the attributes that requests have.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use http::HeaderName;
use http::request::Parts;

use crate::address::Prefixes;
use crate::client_address::ClientAddress;
use crate::key::{self, Key, KeyBuffer, KeyWriter, RouteKey};
use crate::path::PathPattern;

/// A part of the key by which a rule tells clients apart: one attribute, or several alternatives, of which the first
/// that a request has is used.
///
/// The value of one attribute is the part itself. Among alternatives, the value follows the name of its attribute, so
/// that no user is the same client as an address: `header:x-user=alice`, `client=192.0.2.7`.
///
/// ```
/// use earrrl_tower::{ClientAddress, KeyPart, RequestRule};
/// let user_or_network: KeyPart = "header:x-user | client/24".parse()?;
/// let key = user_or_network.for_layer(&ClientAddress::default());
/// let rule = RequestRule::new("per-user", "gcra 10/s burst=50".parse()?, key);
/// # let _ = rule;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPart<A = RequestAttribute>(Vec<Alternative<A>>);

/// One of the values that a part of a key may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alternative<A> {
    /// The address of the client, cut to these lengths.
    Client(ClientLengths),
    /// The value of another attribute.
    Attribute(A),
    /// A fixed text, the same for all requests.
    Literal(String),
}

/// The lengths of the prefixes that are one client, as in `client/24,64`; a length that is not set is the usual one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLengths {
    ipv4: Option<u8>,
    ipv6: Option<u8>,
}

impl ClientLengths {
    fn parse(text: &str) -> Option<Self> {
        let length = |text: &str, most| text.parse().ok().filter(|length| *length <= most);
        let (ipv4, ipv6) = match text.split_once(',') {
            Some((ipv4, ipv6)) => (Some(length(ipv4, 32)?), Some(length(ipv6, 128)?)),
            None => match length(text, 128)? {
                ipv4 @ 0..=32 => (Some(ipv4), None),
                ipv6 => (None, Some(ipv6)),
            },
        };
        Some(Self { ipv4, ipv6 })
    }

    /// Returns these lengths, with those of `usual` in place of those that are not set.
    pub fn or(self, usual: Prefixes) -> Prefixes {
        usual.with(self.ipv4, self.ipv6)
    }
}

impl<A: fmt::Display> KeyPart<A> {
    /// Returns the part that has these alternatives.
    ///
    /// # Errors
    /// Returns a sentence about alternatives that would not be told apart.
    pub fn new(alternatives: Vec<Alternative<A>>) -> Result<Self, String> {
        let names: Vec<String> = alternatives.iter().map(ToString::to_string).collect();
        let is_clear = |(nth, name): (usize, &String)| {
            !name.is_empty() && !name.contains('=') && !names[..nth].contains(name)
        };
        match names.iter().enumerate().all(is_clear) || names.len() == 1 {
            true => Ok(Self(alternatives)),
            false => Err(format!(
                "`{}`: expected each alternative once, and no `=` in their names",
                names.join(" | ").escape_debug()
            )),
        }
    }

    /// Parses a part; `attribute` returns the attribute of a name.
    ///
    /// # Errors
    /// Returns a sentence about what is expected.
    pub fn parse(
        text: &str,
        attribute: impl Fn(&str) -> Result<A, String>,
    ) -> Result<Self, String> {
        let texts = alternatives(text).into_iter();
        Self::new(
            texts
                .map(|text| Alternative::parse(text, &attribute))
                .collect::<Result<_, _>>()?,
        )
    }

    /// Returns the part that is the client's address.
    pub fn client() -> Self {
        Self(vec![Alternative::Client(ClientLengths::default())])
    }

    /// Returns the alternatives, in the order in which they are tried.
    pub fn alternatives(&self) -> &[Alternative<A>] {
        &self.0
    }

    /// Returns the part of a request's key, and the alternative that it is made of; no bytes if the request has none.
    /// `read` returns the value of an alternative; `None` if a request lacks it.
    pub fn value<'v>(
        &'v self,
        read: impl Fn(&'v Alternative<A>) -> Option<Cow<'v, [u8]>>,
    ) -> (Cow<'v, [u8]>, Option<&'v Alternative<A>>) {
        let found = |one: &'v Alternative<A>| Some((read(one)?, one));
        let Some((value, one)) = self.0.iter().find_map(found) else {
            return (Cow::default(), None);
        };
        if self.0.len() == 1 {
            return (value, Some(one));
        }
        (
            Cow::Owned([one.tag().as_bytes(), &value].concat()),
            Some(one),
        )
    }

    /// Returns the alternative that a part of a key was made of, and its value; `None` if it was made of none.
    pub fn split<'v>(&self, part: &'v [u8]) -> Option<(&Alternative<A>, &'v [u8])> {
        if let [only] = &self.0[..] {
            return Some((only, part));
        }
        let value = |one: &Alternative<A>| part.strip_prefix(one.tag().as_bytes());
        self.0.iter().find_map(|one| Some((one, value(one)?)))
    }

    /// Returns the part as a key of requests; `attribute` returns the key of an attribute.
    pub fn to_key(
        &self,
        address: &ClientAddress,
        mut attribute: impl FnMut(&A) -> Box<dyn Key>,
    ) -> Box<dyn Key> {
        let mut key = |one: &Alternative<A>| -> Box<dyn Key> {
            match one {
                Alternative::Client(lengths) => {
                    let prefixes = lengths.or(address.client_prefixes());
                    Box::new(address.clone().prefixes(prefixes))
                }
                Alternative::Attribute(name) => attribute(name),
                Alternative::Literal(text) => {
                    let text = text.clone();
                    Box::new(KeyWriter(move |_: &Parts, key: &mut KeyBuffer| {
                        key.push(text.as_bytes());
                        true
                    }))
                }
            }
        };
        match &self.0[..] {
            [only] => key(only),
            several => Box::new(FirstOf(
                several.iter().map(|one| (one.tag(), key(one))).collect(),
            )),
        }
    }
}

impl<A: AsRef<str>> KeyPart<A> {
    /// Returns the names of the attributes that the part is read from.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(Alternative::attribute)
    }
}

impl KeyPart {
    /// Returns the part as a key of the layer. `client` is found by the settings in `address`.
    pub fn for_layer(&self, address: &ClientAddress) -> Box<dyn Key> {
        self.to_key(address, RequestAttribute::to_key)
    }
}

impl FromStr for KeyPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text, str::parse)
    }
}

impl<A: fmt::Display> fmt::Display for KeyPart<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, one) in self.0.iter().enumerate() {
            let before = if nth == 0 { "" } else { " | " };
            write!(f, "{before}{one}")?;
        }
        Ok(())
    }
}

/// Returns the texts between the characters `|` that are not in quotes.
fn alternatives(text: &str) -> Vec<&str> {
    let mut quote = None;
    let mut is_start = true;
    let ends = |c: char| {
        match quote {
            None if is_start && matches!(c, '\'' | '"') => quote = Some(c),
            Some(open) if open == c => quote = None,
            _ => {}
        }
        let ends = quote.is_none() && c == '|';
        is_start = ends || (is_start && c == ' ');
        ends
    };
    text.split(ends).map(str::trim).collect()
}

impl<A> Alternative<A> {
    fn parse(text: &str, attribute: impl Fn(&str) -> Result<A, String>) -> Result<Self, String> {
        for quote in ['\'', '"'] {
            if let Some(rest) = text.strip_prefix(quote) {
                return match rest.strip_suffix(quote) {
                    Some(literal) => Ok(Self::Literal(literal.to_owned())),
                    None => Err(format!("`{}` lacks its closing quote", text.escape_debug())),
                };
            }
        }
        match text.strip_prefix("client") {
            Some("") => Ok(Self::Client(ClientLengths::default())),
            Some(lengths) if lengths.starts_with('/') => {
                let lengths = ClientLengths::parse(&lengths[1..]);
                lengths.map(Self::Client).ok_or_else(|| {
                    format!(
                        "`{}`: expected a length of IPv4 up to 32, one of IPv6 from 33 to 128, or both, as \
                         client/24, client/48 or client/24,48",
                        text.escape_debug()
                    )
                })
            }
            _ => attribute(text).map(Self::Attribute),
        }
    }
}

impl<A: fmt::Display> Alternative<A> {
    /// Returns the text before a value, which tells it apart from the values of other alternatives.
    fn tag(&self) -> String {
        format!("{self}=")
    }
}

impl<A: AsRef<str>> Alternative<A> {
    /// Returns the name of the attribute that is read; `None` for a literal.
    pub fn attribute(&self) -> Option<&str> {
        match self {
            Self::Client(_) => Some("client"),
            Self::Attribute(name) => Some(name.as_ref()),
            Self::Literal(_) => None,
        }
    }
}

impl<A: fmt::Display> fmt::Display for Alternative<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(ClientLengths { ipv4, ipv6 }) => match (ipv4, ipv6) {
                (Some(ipv4), Some(ipv6)) => write!(f, "client/{ipv4},{ipv6}"),
                (Some(length), None) | (None, Some(length)) => write!(f, "client/{length}"),
                (None, None) => f.write_str("client"),
            },
            Self::Attribute(name) => name.fmt(f),
            Self::Literal(text) => write!(f, "'{text}'"),
        }
    }
}

/// An attribute of the requests that a layer or a middleware reads, beside `client`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestAttribute {
    /// A part that is the same for all requests.
    Everyone,
    /// The method.
    Method,
    /// The path, the same for all of its spellings.
    Path,
    /// The route that the framework has found, in the extension [`Route`](key::Route) or axum's.
    Route,
    /// The value of a header.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(String),
}

impl RequestAttribute {
    /// Returns the attribute as a key.
    pub fn to_key(&self) -> Box<dyn Key> {
        match self {
            Self::Everyone => Box::new(key::Everyone),
            Self::Method => Box::new(key::Method),
            Self::Path => Box::new(key::path()),
            Self::Route => Box::new(RouteKey),
            Self::Header(name) => Box::new(key::header(name.clone())),
            Self::Cookie(name) => Box::new(key::cookie(name.clone())),
        }
    }
}

impl FromStr for RequestAttribute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match (text, text.split_once(':')) {
            ("everyone", _) => Self::Everyone,
            ("method", _) => Self::Method,
            ("path", _) => Self::Path,
            ("route", _) => Self::Route,
            (_, Some(("header", name))) => match name.parse() {
                Ok(name) => Self::Header(name),
                Err(_) => return Err(format!("{name:?} is not the name of a header")),
            },
            (_, Some(("cookie", name))) if !name.is_empty() => Self::Cookie(name.to_owned()),
            _ => {
                let expected =
                    "client, everyone, method, path, route, header:NAME, cookie:NAME or 'literal'";
                return Err(format!("{text:?} is not {expected}"));
            }
        })
    }
}

impl fmt::Display for RequestAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("everyone"),
            Self::Method => f.write_str("method"),
            Self::Path => f.write_str("path"),
            Self::Route => f.write_str("route"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}

/// A key that is the first of these that a request has, behind the text that tells it apart from the others.
struct FirstOf(Vec<(String, Box<dyn Key>)>);

impl Key for FirstOf {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        let start = key.len();
        self.0.iter().any(|(tag, own)| {
            key.push(tag.as_bytes());
            let is_present = own.write(request, key);
            if !is_present {
                key.truncate(start);
            }
            is_present
        })
    }

    fn client_address(&self) -> Option<&ClientAddress> {
        self.0.iter().find_map(|(_, own)| own.client_address())
    }

    fn restrict(&mut self, paths: &[PathPattern]) {
        self.0.iter_mut().for_each(|(_, own)| own.restrict(paths));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerAddress;
    use http::{HeaderValue, Request};

    fn parse(text: &str) -> Result<KeyPart, String> {
        text.parse()
    }

    #[test]
    fn a_part_is_written_as_it_is_read() {
        for text in [
            "client",
            "client/24",
            "client/48",
            "client/32,56",
            "header:x-user | client/24",
            "cookie:session | 'a|b' | everyone",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        let narrow = parse(" header:X-User|client ").unwrap();
        assert_eq!(narrow.to_string(), "header:x-user | client");
    }

    #[test]
    fn lengths_are_those_of_ipv4_ipv6_or_both() {
        for (text, ipv4, ipv6) in [
            ("client", "192.0.2.7", "2001:db8:1:2::/64"),
            ("client/24", "192.0.2.0/24", "2001:db8:1:2::/64"),
            ("client/48", "192.0.2.7", "2001:db8:1::/48"),
            ("client/0,32", "0.0.0.0/0", "2001:db8::/32"),
        ] {
            let part = parse(text).unwrap();
            let [Alternative::Client(lengths)] = part.alternatives() else {
                panic!("{text}")
            };
            let key = |address: &str| {
                lengths
                    .or(Prefixes::default())
                    .key(address.parse().unwrap())
            };
            assert_eq!([key("192.0.2.7"), key("2001:db8:1:2::3")], [ipv4, ipv6]);
        }
    }

    #[test]
    fn mistakes_are_told() {
        for (text, told) in [
            (
                "client/129",
                "`client/129`: expected a length of IPv4 up to 32",
            ),
            (
                "client/33,64",
                "or both, as client/24, client/48 or client/24,48",
            ),
            ("client/24,", "`client/24,`: expected"),
            ("clients", "\"clients\" is not client, everyone"),
            ("header:x-user |", "\"\" is not client, everyone"),
            (
                "header:x-user | header:X-User",
                "expected each alternative once",
            ),
            ("cookie:a=b | client", "no `=` in their names"),
            ("'a", "lacks its closing quote"),
            ("cookie:it's | x", "\"x\" is not client"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn the_first_that_is_present_tells_clients_apart() {
        let user_or_network = parse("header:x-user | client/24").unwrap();
        let key = user_or_network.for_layer(&ClientAddress::default());
        let alone = parse("header:x-user").unwrap();
        let alone = alone.for_layer(&ClientAddress::default());
        for (values, expected) in [
            (&[][..], "client/24=192.0.2.0/24"),
            (&[""], "client/24=192.0.2.0/24"),
            (&["ann"], "header:x-user=ann"),
            (&["", "ann", "bob"], "header:x-user=ann"),
            (
                &["client/24=192.0.2.0/24"],
                "header:x-user=client/24=192.0.2.0/24",
            ),
        ] {
            let mut request = Request::new(()).into_parts().0;
            request
                .extensions
                .insert(PeerAddress([192, 0, 2, 7].into()));
            for value in values {
                let value = HeaderValue::from_static(value);
                request.headers.append("x-user", value);
            }
            let mut text = KeyBuffer::default();
            assert!(key.write(&request, &mut text));
            assert_eq!(text.as_bytes(), expected.as_bytes());
            let (one, value) = user_or_network.split(text.as_bytes()).unwrap();
            assert_eq!([one.tag().as_bytes(), value].concat(), text.as_bytes());
            let mut bare = KeyBuffer::default();
            let has_user = expected.starts_with("header");
            assert_eq!(alone.write(&request, &mut bare), has_user);
        }
        assert_eq!(user_or_network.split(b""), None);
        assert!(key.client_address().is_some());
        let stranger = Request::new(()).into_parts().0;
        assert!(!key.write(&stranger, &mut KeyBuffer::default()));
    }
}
