//! The parts of the key that distinguishes the clients of a rule.

use earrrl_tower::ClientAddress;
use earrrl_tower::key::{self, Key, KeyBuffer};
use http::HeaderName;
use http::request::Parts;

use crate::answers::answers;
use crate::error::Error;

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The address of the client.
    Client,
    /// A part that is the same for all requests.
    Everyone,
    /// The method.
    Method,
    /// The path, the same for all of its spellings.
    Path,
    /// The route that the framework has found; empty if it has found none.
    Route,
    /// The value of a header.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(String),
    /// A value that a function of the other language returns.
    Function,
}

impl KeyPart {
    /// Returns the part that a text describes.
    ///
    /// # Errors
    /// Returns an error that lists the known parts.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(match (text, text.split_once(':')) {
            ("client", _) => Self::Client,
            ("everyone", _) => Self::Everyone,
            ("method", _) => Self::Method,
            ("path", _) => Self::Path,
            ("route", _) => Self::Route,
            (_, Some(("header", name))) => match name.parse() {
                Ok(name) => Self::Header(name),
                Err(_) => {
                    return Err(format!("key: {name:?} is not the name of a header").into());
                }
            },
            (_, Some(("cookie", name))) if !name.is_empty() => Self::Cookie(name.to_owned()),
            _ => {
                let expected = "client, everyone, method, path, route, header:NAME or cookie:NAME";
                return Err(format!("key: {text:?} is not {expected}").into());
            }
        })
    }

    /// Returns the name of the header that the part is read from, if there is one.
    pub(crate) fn header(&self, address: &ClientAddress) -> Option<HeaderName> {
        match self {
            Self::Client if address.believes_proxies() => address.header().parse().ok(),
            Self::Header(name) => Some(name.clone()),
            Self::Cookie(_) => Some(http::header::COOKIE),
            _ => None,
        }
    }
}

/// Returns the key of a rule as the layer takes it. `place` is the rule's place in the layer.
pub(crate) fn layer_key(parts: &[KeyPart], place: usize, address: &ClientAddress) -> Box<dyn Key> {
    let mut functions = 0..;
    let mut keys: Vec<Box<dyn Key>> = parts
        .iter()
        .map(|part| -> Box<dyn Key> {
            match part {
                KeyPart::Client => Box::new(address.clone()),
                KeyPart::Everyone => Box::new(key::Everyone),
                KeyPart::Method => Box::new(key::Method),
                KeyPart::Path => Box::new(key::path()),
                KeyPart::Route => Box::new(RouteKey),
                KeyPart::Header(name) => Box::new(key::header(name.clone())),
                KeyPart::Cookie(name) => Box::new(key::cookie(name.clone())),
                KeyPart::Function => Box::new(AnsweredKey {
                    place,
                    function: functions.next().unwrap_or_default(),
                }),
            }
        })
        .collect();
    match keys.len() {
        1 => keys.remove(0),
        _ => Box::new(keys),
    }
}

/// The route of a request, among its extensions.
#[derive(Clone)]
pub(crate) struct Route(pub(crate) String);

/// A key that is the route of a request. Requests that match no route, which get status 404, have the empty text in
/// common.
struct RouteKey;

impl Key for RouteKey {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        if let Some(Route(route)) = request.extensions.get() {
            key.push(route.as_bytes());
        }
        true
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
