//! Rules, costs and decisions in the formats of serde: rules and costs as their texts, decisions as
//! maps.

use alloc::format;
use alloc::string::String;
use core::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Error, Serialize, SerializeStruct, Serializer};

use crate::cost::Cost;
use crate::decision::Decision;
use crate::rule::Rule;

/// Writes the text of the rule. Its action and its bounds are no part of that, so a rule with other
/// ones than a parsed rule is an error.
impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if *self != Self::from(*self.limit()) {
            let problem = format!("`{self}` has an action or bounds, which its text lacks");
            return Err(S::Error::custom(problem));
        }
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber)
    }
}

/// Reads a cost from its text or from a number.
struct TextOrNumber;

impl Visitor<'_> for TextOrNumber {
    type Value = Cost;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0 to 1e18")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Cost, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, units: u64) -> Result<Cost, E> {
        self.visit_str(&format!("{units}"))
    }

    fn visit_i64<E: de::Error>(self, units: i64) -> Result<Cost, E> {
        self.visit_str(&format!("{units}"))
    }

    fn visit_f64<E: de::Error>(self, units: f64) -> Result<Cost, E> {
        Cost::try_from(units).map_err(E::custom)
    }
}

/// Writes times in seconds; a wait of `None` stands for never. `at` is in nanoseconds.
impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let wait = self.retry_after.duration();
        let mut map = serializer.serialize_struct("Decision", 10)?;
        map.serialize_field("allowed", &self.allowed)?;
        map.serialize_field("at", &self.at.get())?;
        map.serialize_field("outcome", self.outcome.name())?;
        map.serialize_field("rule", &self.rule)?;
        map.serialize_field("rate", &self.rate)?;
        map.serialize_field("limit", &self.limit)?;
        map.serialize_field("remaining", &self.remaining)?;
        map.serialize_field("retry_after", &wait.map(|wait| wait.as_secs_f64()))?;
        map.serialize_field("reset_after", &self.reset_after.as_secs_f64())?;
        map.serialize_field("delay", &self.delay.as_secs_f64())?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Action;
    use crate::{Limiter, ManualClock, Nanos};
    use serde_json::{from_str, to_string};
    use std::string::ToString;

    #[test]
    fn rules_are_texts() {
        let text = "\"recent-average 1/s half-life=10s strict\"";
        let rule: Rule = from_str(text).unwrap();
        assert_eq!(to_string(&rule).unwrap(), text);
        let banning = rule.with_action(Action::ShadowBan).unwrap();
        assert!(
            to_string(&banning)
                .unwrap_err()
                .to_string()
                .contains("an action")
        );
        for wrong in ["\"gcra 1/s\"", "7", "\"\""] {
            assert!(from_str::<Rule>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn costs_are_texts_or_numbers() {
        for (text, expected) in [
            ("2", "2"),
            ("2.5", "2.5"),
            ("\"0.000000001\"", "0.000000001"),
            ("1000000000000000000", "1000000000000000000"),
        ] {
            let cost: Cost = from_str(text).unwrap();
            assert_eq!(cost, expected.parse().unwrap(), "{text}");
            assert_eq!(from_str::<Cost>(&to_string(&cost).unwrap()).unwrap(), cost);
        }
        for wrong in ["-1", "1e19", "18446744073709551615", "null", "\"x\"", "[1]"] {
            assert!(from_str::<Cost>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn decisions_are_maps() {
        let rule: Rule = "fixed-window 1/1m".parse().unwrap();
        let clock = ManualClock::new(Nanos::from_secs(30));
        let limiter = Limiter::<str>::builder(rule).clock(clock).build().unwrap();
        assert!(limiter.check("k").is_allowed());
        let denied = limiter.check("k").decision();
        assert_eq!(
            to_string(&denied).unwrap(),
            r#"{"allowed":false,"at":30000000000,"outcome":"deny","rule":0,"rate":0.016666666666666666,"#
                .to_string()
                + r#""limit":0.016666666666666666,"remaining":0,"retry_after":30.0,"reset_after":30.0,"delay":0.0}"#
        );
    }
}
