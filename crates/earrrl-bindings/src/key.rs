//! The parts of the key that distinguishes the clients of a rule.

use std::fmt;

use earrrl_tower::key::{Key, KeyBuffer};
use earrrl_tower::{Alternative, ClientAddress, RequestAttribute};
use http::HeaderName;
use http::request::Parts;

use crate::answers::answers;
use crate::error::Error;

/// A part of a key.
pub type KeyPart = earrrl_tower::KeyPart<Attribute>;

/// An attribute of a request that a part of a key is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// An attribute that the layer reads.
    Of(RequestAttribute),
    /// A value that a function of the other language returns.
    Function,
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(attribute) => attribute.fmt(f),
            Self::Function => f.write_str("function"),
        }
    }
}

/// Returns the part of a key that a text describes; for no text, the value of a function.
///
/// # Errors
/// Returns an error that lists the known parts.
pub fn key_part(text: Option<&str>) -> Result<KeyPart, Error> {
    let part = match text {
        Some(text) => KeyPart::parse(text, |name| name.parse().map(Attribute::Of)),
        None => KeyPart::new(vec![Alternative::Attribute(Attribute::Function)]),
    };
    part.map_err(|why| format!("key: {why}").into())
}

/// Returns the attributes of requests that the parts of a key are read from.
pub(crate) fn attributes(parts: &[KeyPart]) -> impl Iterator<Item = RequestAttribute> {
    let alternatives = parts.iter().flat_map(KeyPart::alternatives);
    alternatives.filter_map(|one| match one {
        Alternative::Attribute(Attribute::Of(attribute)) => Some(attribute.clone()),
        _ => None,
    })
}

/// Returns the names of the headers from which attributes and addresses are read, each of them once: two lines of a
/// header may be a sign that a client has forged one.
pub(crate) fn headers(read: &[RequestAttribute], address: &ClientAddress) -> Vec<HeaderName> {
    // Calls over gRPC are recognised by their type.
    let mut names = vec![http::header::CONTENT_TYPE];
    let of_proxies = address
        .believes_proxies()
        .then(|| address.header().parse::<HeaderName>());
    let own = read.iter().filter_map(|attribute| match attribute {
        RequestAttribute::Header(name) => Some(name.clone()),
        RequestAttribute::Cookie(_) => Some(http::header::COOKIE),
        _ => None,
    });
    for name in of_proxies.into_iter().flatten().chain(own) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the key of a rule as the layer takes it. `place` is the rule's place in the layer.
pub(crate) fn layer_key(parts: &[KeyPart], place: usize, address: &ClientAddress) -> Box<dyn Key> {
    let mut functions = 0..;
    let mut attribute = |attribute: &Attribute| -> Box<dyn Key> {
        match attribute {
            Attribute::Of(attribute) => attribute.to_key(),
            Attribute::Function => Box::new(AnsweredKey {
                place,
                function: functions.next().unwrap_or_default(),
            }),
        }
    };
    let keys = parts
        .iter()
        .map(|part| part.to_key(address, &mut attribute));
    let mut keys: Vec<Box<dyn Key>> = keys.collect();
    match keys.len() {
        1 => keys.remove(0),
        _ => Box::new(keys),
    }
}

/// A key that a function has returned.
struct AnsweredKey {
    /// The place of the rule in the layer.
    place: usize,
    /// The place of the function among those of the rule's key.
    function: usize,
}

impl Key for AnsweredKey {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        let own = answers(request, self.place);
        let bytes = own.and_then(|own| own.keys.get(self.function)?.as_deref());
        bytes.inspect(|bytes| key.push(bytes)).is_some()
    }
}
