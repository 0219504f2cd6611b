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

/// Returns the names of the headers that the parts of a key are read from.
pub(crate) fn headers(parts: &[KeyPart], address: &ClientAddress) -> Vec<HeaderName> {
    let header = |one: &Alternative<Attribute>| match one {
        Alternative::Client(_) if address.believes_proxies() => address.header().parse().ok(),
        Alternative::Attribute(Attribute::Of(RequestAttribute::Header(name))) => Some(name.clone()),
        Alternative::Attribute(Attribute::Of(RequestAttribute::Cookie(_))) => {
            Some(http::header::COOKIE)
        }
        _ => None,
    };
    let alternatives = parts.iter().flat_map(KeyPart::alternatives);
    alternatives.filter_map(header).collect()
}

/// Returns true if a part of a key is this attribute of the request.
pub(crate) fn names(parts: &[KeyPart], attribute: RequestAttribute) -> bool {
    let attribute = Alternative::Attribute(Attribute::Of(attribute));
    parts
        .iter()
        .any(|part| part.alternatives().contains(&attribute))
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
