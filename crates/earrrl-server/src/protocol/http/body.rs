//! The JSON bodies of requests. Text without escapes is borrowed from the body. Numbers are parsed
//! as decimals, without rounding to a double.
//!
//! One field of a body says that it borrows; serde then lets the others borrow too.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earrrl::{Cost, MAX_CHARGES, Nanos, RuleError};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::service::ask::Ask;
use crate::service::attributes::MAX_ATTRIBUTES;
use crate::service::error::AskError;
use crate::service::key::{Key, join};
use crate::service::rule::ActiveRule;

/// The maximum number of checks in one batch.
pub(super) const MAX_BATCH: usize = 1000;

/// The body of a check. It has one of: a rule and key, a list of charges, or attributes that select
/// all rules that match.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check<'a> {
    #[serde(borrow)]
    pub(super) rule: Option<JsonText<'a>>,
    pub(super) key: Option<KeyText<'a>>,
    pub(super) key_b64: Option<JsonText<'a>>,
    pub(super) cost: Option<&'a RawValue>,
    pub(super) rules: Option<Vec<JsonObject<ChargeBody<'a>>>>,
    pub(super) attributes: Option<Pairs<'a>>,
}

/// One item of a check's list of charges (`rules`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChargeBody<'a> {
    #[serde(borrow)]
    pub(super) rule: JsonText<'a>,
    pub(super) key: Option<KeyText<'a>>,
    pub(super) key_b64: Option<JsonText<'a>>,
    pub(super) cost: Option<&'a RawValue>,
}

/// The body of a request to `/v1/refund`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Refund<'a> {
    #[serde(borrow)]
    pub(super) rule: JsonText<'a>,
    pub(super) key: Option<KeyText<'a>>,
    pub(super) key_b64: Option<JsonText<'a>>,
    pub(super) cost: Option<&'a RawValue>,
    pub(super) t0: Option<&'a RawValue>,
}

/// The body of a batch: a list of checks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody<'a> {
    #[serde(borrow)]
    pub(super) checks: Vec<JsonObject<Check<'a>>>,
}

/// The decision that a check asks for, after its body was found to ask for exactly one.
#[derive(Debug)]
pub(super) enum WantedDecision<'a> {
    One(NamedCharge<'a>),
    Several(Vec<NamedCharge<'a>>),
    Matching(Vec<(Cow<'a, str>, Cow<'a, str>)>),
}

/// One charge: the name of a rule, the key of a client and the cost.
#[derive(Debug)]
pub(super) struct NamedCharge<'a> {
    pub(super) rule: Cow<'a, str>,
    pub(super) key: KeyBytes<'a>,
    pub(super) cost: Option<Cost>,
}

impl NamedCharge<'_> {
    /// Returns this charge as a request for a decision under `rule`, which must be the rule that
    /// the charge names.
    pub(super) fn ask<'r>(&'r self, rule: &'r ActiveRule) -> Ask<'r> {
        Ask::new(rule, self.key.as_bytes(), self.cost)
    }
}

/// The key of a client: text that was sent as it is, or bytes that were decoded from base64 or
/// joined from parts.
#[derive(Debug)]
pub(super) enum KeyBytes<'a> {
    Text(Cow<'a, str>),
    Made(Key),
}

impl KeyBytes<'_> {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Made(bytes) => bytes,
        }
    }
}

impl<'a> Check<'a> {
    /// Returns the decision that the check asks for, or an error if its fields contradict each
    /// other.
    pub(super) fn wanted(self) -> Result<WantedDecision<'a>, AskError> {
        match (self.rule, self.rules, self.attributes) {
            (Some(rule), None, None) => {
                let charge = ChargeBody {
                    rule,
                    key: self.key,
                    key_b64: self.key_b64,
                    cost: self.cost,
                };
                Ok(WantedDecision::One(charge.named()?))
            }
            (None, rules, attributes)
                if self.key.is_none() && self.key_b64.is_none() && self.cost.is_none() =>
            {
                match (rules, attributes) {
                    (Some(rules), None) => Ok(WantedDecision::Several(several(rules)?)),
                    (None, Some(attributes)) => Ok(WantedDecision::Matching(attributes.0)),
                    _ => Err(one_of()),
                }
            }
            (None, Some(_), None) => Err(misplaced("rules: each has its own key and cost")),
            (None, None, Some(_)) => {
                Err(misplaced("attributes: the rules set the key and the cost"))
            }
            _ => Err(one_of()),
        }
    }
}

/// Returns the error of a check with a `key` or a `cost` beside a field that excludes them.
fn misplaced(why: &str) -> AskError {
    AskError::Invalid(format!("key, key_b64, cost: not beside {why}"))
}

fn one_of() -> AskError {
    AskError::Invalid("expected one of: rule with key, rules, attributes".to_owned())
}

fn several(rules: Vec<JsonObject<ChargeBody<'_>>>) -> Result<Vec<NamedCharge<'_>>, AskError> {
    if rules.is_empty() || rules.len() > MAX_CHARGES {
        let why = format!(
            "rules: {} charges; expected 1 to {MAX_CHARGES}",
            rules.len()
        );
        return Err(AskError::Invalid(why));
    }
    rules.into_iter().map(|charge| charge.0.named()).collect()
}

impl<'a> ChargeBody<'a> {
    pub(super) fn named(self) -> Result<NamedCharge<'a>, AskError> {
        let key = match (self.key, self.key_b64) {
            (Some(KeyText(key)), None) => key,
            (None, Some(text)) => {
                let bytes = STANDARD.decode(text.0.as_bytes());
                let bytes = bytes.map_err(|error| invalid("key_b64", &error))?;
                KeyBytes::Made(Key::from_vec(bytes))
            }
            _ => {
                return Err(AskError::Invalid(
                    "expected one of: key, key_b64".to_owned(),
                ));
            }
        };
        Ok(NamedCharge {
            rule: self.rule.0,
            key,
            cost: self.cost.map(|cost| amount("cost", cost)).transpose()?,
        })
    }
}

impl<'a> Refund<'a> {
    /// Returns the rule, key and cost of the charge that is to be refunded.
    pub(super) fn named(self) -> Result<NamedCharge<'a>, AskError> {
        let Self {
            rule,
            key,
            key_b64,
            cost,
            ..
        } = self;
        ChargeBody {
            rule,
            key,
            key_b64,
            cost,
        }
        .named()
    }

    /// Returns the time of the charge that is to be refunded, if the body has it (`t0`).
    pub(super) fn charged_at(&self) -> Result<Option<Nanos>, AskError> {
        let Some(t0) = self.t0 else { return Ok(None) };
        // The parser for costs serves here too: it is exact to 1e-9, which for seconds is one
        // nanosecond.
        let seconds = billionths(t0).map_err(|error| invalid("t0", &error))?;
        let nanos = u64::try_from(seconds.billionths());
        nanos
            .map(|nanos| Some(Nanos::new(nanos)))
            .map_err(|error| invalid("t0", &error))
    }
}

/// Returns the text of a JSON parser's error on one line.
pub(super) fn shown(error: &serde_json::Error) -> String {
    error.to_string().escape_debug().to_string()
}

/// Parses the number of a field, which has at most nine decimals.
pub(super) fn amount(field: &str, number: &RawValue) -> Result<Cost, AskError> {
    billionths(number).map_err(|error| invalid(field, &error))
}

/// Parses a number that has at most nine decimals. A double that differs from such a number only by
/// its rounding error is accepted too, as JavaScript sends for `0.1 + 0.2`.
fn billionths(number: &RawValue) -> Result<Cost, RuleError> {
    let text = number.get();
    text.parse().or_else(|error: RuleError| {
        let double: f64 = text.parse().map_err(|_| error.clone())?;
        let nearest = Cost::try_from(double).map_err(|_| error.clone())?;
        let off = (nearest.as_f64() - double).abs();
        if double > 0.0 && off <= double * f64::EPSILON {
            Ok(nearest)
        } else {
            Err(error)
        }
    })
}

fn invalid(field: &str, error: &dyn fmt::Display) -> AskError {
    AskError::Invalid(format!("{field}: {error}"))
}

/// A value of type `T` that must be sent as a JSON object. Without this wrapper, serde would also
/// accept a JSON array, and assign its elements to the fields of `T` in order.
#[derive(Debug)]
pub(super) struct JsonObject<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for MembersVisitor<T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer
            .deserialize_map(MembersVisitor(PhantomData))
            .map(JsonObject)
    }
}

/// Text that borrows from the request's body. The wrapper is needed because serde always copies the
/// text of a plain `Option<Cow<str>>`.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct JsonText<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// The key of a client, sent as text or as a list of parts that are joined.
#[derive(Debug)]
pub(super) struct KeyText<'a>(KeyBytes<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for KeyText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = KeyBytes<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or a list of strings")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(KeyBytes::Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(KeyBytes::Text(Cow::Owned(text.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut parts: Vec<JsonText<'de>> = Vec::new();
                while let Some(part) = list.next_element()? {
                    parts.push(part);
                }
                Ok(KeyBytes::Made(join(
                    parts.iter().map(|part| part.0.as_bytes()),
                )))
            }
        }
        deserializer.deserialize_any(KeyVisitor).map(KeyText)
    }
}

/// The names and values of attributes. Values are strings, numbers or booleans, and are all kept as
/// text.
#[derive(Debug)]
pub(super) struct Pairs<'a>(pub(super) Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings and numbers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<JsonText<'de>, &'de RawValue>()? {
                    if pairs.len() == MAX_ATTRIBUTES {
                        return Err(A::Error::custom(format!("more than {MAX_ATTRIBUTES}")));
                    }
                    pairs.push((name.0, scalar(value.get()).map_err(A::Error::custom)?));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

/// The names of rules, each with a cost.
#[derive(Debug)]
pub(super) struct CostPairs<'a>(pub(super) Vec<(Cow<'a, str>, Cost)>);

impl<'de: 'a, 'a> Deserialize<'de> for CostPairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CostsVisitor;
        impl<'de> Visitor<'de> for CostsVisitor {
            type Value = CostPairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of costs by the names of rules")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<JsonText<'de>, &'de RawValue>()? {
                    if pairs.len() == MAX_CHARGES {
                        return Err(A::Error::custom(format!("more than {MAX_CHARGES}")));
                    }
                    pairs.push((name.0, amount("costs", value).map_err(A::Error::custom)?));
                }
                Ok(CostPairs(pairs))
            }
        }
        deserializer.deserialize_map(CostsVisitor)
    }
}

fn scalar(json: &str) -> Result<Cow<'_, str>, String> {
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<JsonText<'_>>(json)
            .map(|text| text.0)
            .map_err(|e| e.to_string()),
        Some(b'[' | b'{' | b'n') | None => Err("expected a string or a number".to_owned()),
        Some(_) => Ok(Cow::Borrowed(json)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(json: &str) -> Result<WantedDecision<'_>, String> {
        let check: JsonObject<Check<'_>> =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        check.0.wanted().map_err(|error| error.to_string())
    }

    #[test]
    fn a_rule_and_key() {
        let Ok(WantedDecision::One(named)) = wanted(r#"{"rule":"login","key":"alice","cost":0.1}"#)
        else {
            panic!("one")
        };
        assert!(matches!(named.rule, Cow::Borrowed("login")));
        assert_eq!(named.key.as_bytes(), b"alice");
        assert_eq!(named.cost, Some("0.1".parse().unwrap()));
    }

    #[test]
    fn keys_of_any_bytes_and_several_parts() {
        let key = |json: &str| match wanted(json) {
            Ok(WantedDecision::One(named)) => named.key.as_bytes().to_vec(),
            other => panic!("{other:?}"),
        };
        assert_eq!(key(r#"{"rule":"a","key":"\u00e9\n"}"#), "é\n".as_bytes());
        assert_eq!(key(r#"{"rule":"a","key_b64":"//4="}"#), b"\xff\xfe");
        assert_eq!(
            key(r#"{"rule":"a","key":["192.0.2.7","bob"]}"#),
            b"9:192.0.2.7,3:bob,"
        );
    }

    #[test]
    fn attributes_are_scalars() {
        let json = r#"{"attributes":{"client":"192.0.2.7","cost":5,"vip":true}}"#;
        let Ok(WantedDecision::Matching(pairs)) = wanted(json) else {
            panic!("matching")
        };
        assert_eq!(pairs[1], ("cost".into(), "5".into()));
        assert_eq!(pairs[2].1, "true");
    }

    #[test]
    fn what_is_not_one_thing_is_refused() {
        for json in [
            "{}",
            r#"{"rule":"a"}"#,
            r#"{"rule":"a","key":"k","key_b64":"aw=="}"#,
            r#"{"rule":"a","key":"k","rules":[]}"#,
            r#"{"rules":[]}"#,
            r#"{"rules":[{"rule":"a","key":"k"}],"cost":1}"#,
            r#"{"rule":"a","key":"k","cost":-1}"#,
            r#"{"rule":"a","key":"k","cost":"1"}"#,
            r#"{"rule":"a","key":"k","costs":1}"#,
            r#"{"rule":"a","key_b64":"!"}"#,
            r#"{"rule":"a","key":7}"#,
            r#"{"attributes":{"a":{}}}"#,
            r#"{"attributes":{"a":null}}"#,
            "[]",
            r#"["a","k"]"#,
            r#"{"rules":[["a","k"]]}"#,
            "",
        ] {
            assert!(wanted(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_cost_may_be_what_a_double_makes_of_it() {
        for (json, cost) in [
            ("0.30000000000000004", "0.3"),
            ("3.0000000000000004e-09", "3e-9"),
            ("1e3", "1000"),
        ] {
            let json = format!(r#"{{"rule":"a","key":"k","cost":{json}}}"#);
            let Ok(WantedDecision::One(named)) = wanted(&json) else {
                panic!("{json}")
            };
            assert_eq!(named.cost, Some(cost.parse().unwrap()));
        }
        for cost in [
            "1e-10",
            "0.30000000000001",
            "1e19",
            "1e400",
            "-0.1",
            "0.0000000001",
        ] {
            let json = format!(r#"{{"rule":"a","key":"k","cost":{cost}}}"#);
            assert!(wanted(&json).is_err(), "{cost}");
        }
    }

    #[test]
    fn refunds_say_when_to_the_nanosecond() {
        let json = r#"{"rule":"a","key":"k","cost":2,"t0":1800000000.123456789}"#;
        let refund: Refund<'_> = serde_json::from_str(json).unwrap();
        assert_eq!(
            refund.charged_at(),
            Ok(Some(Nanos::new(1_800_000_000_123_456_789)))
        );
        for t0 in ["-1", "\"1\"", "1e30"] {
            let json = format!(r#"{{"rule":"a","key":"k","cost":2,"t0":{t0}}}"#);
            let refund: Refund<'_> = serde_json::from_str(&json).unwrap();
            assert!(refund.charged_at().is_err(), "{t0}");
        }
    }
}
