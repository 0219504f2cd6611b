//! `RateLimit`, `RateLimit-Policy`, `Retry-After` and the older `X-RateLimit-*`: the only place that
//! writes them.
//!
//! The syntax still moves between drafts, so each draft is a module, and [`current`] is the one in
//! use.

use std::time::Duration;

use earrrl::{Action, Cost, Decision, Limit, Outcome, Quota, Replenishment, Rule, Wait};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::buffer::Buffer;

pub use draft_11 as current;

/// What a client may send, and within which time: `r` and `t` of a `RateLimit` item.
///
/// A client that spreads `units` over `seconds`, and one that sends at once what it may and at 0 units
/// rests for `seconds`, are never denied, and both come to 0.9 of the limit or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// Whole units, at most the quota.
    pub units: u64,
    /// Whole seconds, at least 1; `None` where no wait helps.
    pub seconds: Option<u64>,
}

impl Available {
    /// As a decision tells it for the charge at `place`. `None` where it does not: a peek of
    /// [`peek_cost`] does then, see [`Available::peeked`].
    ///
    /// ```
    /// use earrrl::{Cost, Nanos, Rule, Mode};
    /// use earrrl_tower::headers::Available;
    /// let rule: Rule = "gcra 2/s burst=60".parse()?;
    /// let (_, decision) = rule.limit().decide(None, Nanos::ZERO, Cost::ONE, Mode::Check);
    /// let available = Available::told(&rule, &decision, 0);
    /// assert_eq!(available, Some(Available { units: 59, seconds: Some(30) }));
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn told(rule: &Rule, decision: &Decision, place: usize) -> Option<Self> {
        Self::tells(rule, decision, place).then(|| Self::peeked(rule, decision))
    }

    /// Whether a decision tells it for the charge at `place`.
    pub(crate) fn tells(rule: &Rule, decision: &Decision, place: usize) -> bool {
        let tells = decision.outcome == Outcome::Deny
            || decision.remaining > 0
            || rule.limit().replenishment() == Replenishment::AtWindowEnd;
        decision.rule == place && tells
    }

    /// As the decision on a peek of [`peek_cost`] under this rule alone tells it.
    pub fn peeked(rule: &Rule, decision: &Decision) -> Self {
        Self::of(rule, Quota::of(rule.limit()), decision)
    }

    /// The same, given the rule's quota.
    pub(crate) fn of(rule: &Rule, quota: Quota, decision: &Decision) -> Self {
        match (decision.outcome, decision.retry_after) {
            (Outcome::Deny, Wait::For(wait)) => Self { units: 0, seconds: Some(seconds(wait)) },
            (Outcome::Deny, Wait::Never) => Self { units: 0, seconds: None },
            (Outcome::Delay, _) => Self { units: 0, seconds: Some(seconds(decision.delay)) },
            _ => {
                let units = decision.remaining.min(quota.units);
                Self { units, seconds: earned_in(rule.limit(), units, decision) }
            }
        }
    }
}

/// Whether headers tell of a rule with this action. A client must not learn that it is shadow-banned or
/// quarantined, and a dry run changes nothing.
pub fn is_shown(action: Action) -> bool {
    matches!(action, Action::Deny | Action::Delay { .. })
}

/// What to ask with a peek about the charge at `place`, where a decision does not tell what
/// [`Available`] needs.
pub fn peek_cost(decision: &Decision, place: usize, cost: Cost) -> Cost {
    if decision.is_over(place) { cost } else { Cost::ONE }
}

/// The time in which `units` are earned; a window's are there again at its end.
fn earned_in(limit: &Limit, units: u64, decision: &Decision) -> Option<u64> {
    match limit.replenishment() {
        Replenishment::AtWindowEnd if !decision.reset_after.is_zero() => {
            return Some(seconds(decision.reset_after));
        }
        Replenishment::AtWindowEnd | Replenishment::Steady => {}
    }
    // The nearest whole second: rounded up, limits of several units a second would be used by five
    // sixths only. A client that reads each answer is not misled, since it rests at 0 units.
    let earned = units as f64 / decision.limit;
    (units > 0).then(|| ((earned + 0.5) as u64).max(1))
}

/// Whole seconds, rounded up, at least 1: a client that comes back sooner may be denied again.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// draft-ietf-httpapi-ratelimit-headers-11.
pub mod draft_11 {
    use super::{Available, HeaderName, HeaderValue, Quota, Text, number, value};

    /// `RateLimit`.
    pub const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
    /// `RateLimit-Policy`.
    pub const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

    /// `"login";q=60;w=60`, an item for each rule; `None` for no rule.
    pub fn policies<'a>(rules: impl Iterator<Item = (&'a str, Quota)>) -> Option<HeaderValue> {
        let mut text = Text::default();
        for (rule, quota) in rules {
            start(&mut text, rule);
            number(&mut text, b";q=", quota.units);
            if let Some(window) = quota.window {
                number(&mut text, b";w=", window);
            }
        }
        value(&text)
    }

    /// `"login";r=50;t=30`, an item for each rule, the deciding one first; `None` for no rule.
    pub fn limits<'a>(rules: impl Iterator<Item = (&'a str, Available)>) -> Option<HeaderValue> {
        let mut text = Text::default();
        for (rule, available) in rules {
            start(&mut text, rule);
            tell(&mut text, available);
        }
        value(&text)
    }

    /// [`limits`] of one rule, given its [`label`].
    pub(crate) fn limit(label: &[u8], available: Available) -> Option<HeaderValue> {
        let mut text = Text::default();
        text.push(label);
        tell(&mut text, available);
        value(&text)
    }

    /// What an item about a rule begins with.
    pub(crate) fn label(rule: &str) -> Box<[u8]> {
        let mut text = Text::default();
        start(&mut text, rule);
        text.as_bytes().into()
    }

    fn tell(text: &mut Text, available: Available) {
        number(text, b";r=", available.units);
        if let Some(seconds) = available.seconds {
            number(text, b";t=", seconds);
        }
    }

    /// A comma after the item before, and the rule's name as a structured field's string.
    fn start(text: &mut Text, rule: &str) {
        if !text.is_empty() {
            text.push(b", ");
        }
        text.push(b"\"");
        for byte in rule.bytes().filter(|byte| matches!(byte, b' '..=b'~')) {
            if matches!(byte, b'"' | b'\\') {
                text.push(b"\\");
            }
            text.push(&[byte]);
        }
        text.push(b"\"");
    }
}

/// `Retry-After` for what was denied; none for what will never pass.
pub fn retry_after(decision: &Decision) -> Option<HeaderValue> {
    match (decision.outcome, decision.retry_after) {
        (Outcome::Deny, Wait::For(wait)) => Some(whole(seconds(wait))),
        _ => None,
    }
}

/// A number as a header's value; without an allocation below 100, as most waits are.
fn whole(number: u64) -> HeaderValue {
    const TENS: &str = "\
        10111213141516171819202122232425262728293031323334353637383940414243444546474849\
        50515253545556575859606162636465666768697071727374757677787980818283848586878889\
        90919293949596979899";
    let place = number as usize;
    match number {
        0..10 => HeaderValue::from_static(&"0123456789"[place..=place]),
        10..100 => HeaderValue::from_static(&TENS[2 * place - 20..2 * place - 18]),
        _ => HeaderValue::from(number),
    }
}

/// The older `X-RateLimit-Limit`, `-Remaining` and `-Reset`: the quota, and what `RateLimit` says
/// of the deciding rule.
pub fn x_rate_limit(quota: Quota, available: Available, headers: &mut HeaderMap) {
    let mut insert = |name, value: u64| {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
    };
    insert("x-ratelimit-limit", quota.units);
    insert("x-ratelimit-remaining", available.units);
    if let Some(seconds) = available.seconds {
        insert("x-ratelimit-reset", seconds);
    }
}

/// A header's value in the making, mostly without an allocation.
type Text = Buffer<128>;

/// A structured field's integer has at most 15 digits.
const GREATEST: u64 = 999_999_999_999_999;

fn number(text: &mut Text, before: &[u8; 3], value: u64) {
    text.push(before);
    match value {
        0..10 => text.push(&[b'0' + value as u8]),
        _ => text.push(itoa::Buffer::new().format(value.min(GREATEST)).as_bytes()),
    }
}

fn value(text: &Text) -> Option<HeaderValue> {
    if text.is_empty() { None } else { HeaderValue::from_bytes(text.as_bytes()).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earrrl::{Mode, Nanos, State};
    use sfv::{BareItem, ListEntry, Parser};

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    /// The state after requests of these costs, and the last one's decision.
    fn after(rule: &Rule, costs: &[u64], now: Nanos) -> (Option<State>, Decision) {
        let mut last = rule.limit().decide(None, now, Cost::ZERO, Mode::Peek);
        for cost in costs {
            last = rule.limit().decide(last.0, now, Cost::from_units(*cost), Mode::Check);
        }
        last
    }

    #[test]
    fn what_is_available_and_in_which_time() {
        for (text, costs, expected) in [
            ("gcra 2/s burst=60", &[1][..], (59, Some(30))),
            ("gcra 10/s burst=5", &[1], (4, Some(1))),
            ("gcra 2/s burst=60", &[60], (0, Some(1))),
            ("gcra 0.1/s burst=2", &[1, 1], (0, Some(10))),
            ("gcra 0.1/s burst=2", &[1, 2], (0, Some(10))),
            ("gcra 0.1/s burst=2", &[3], (0, None)),
            ("gcra 1000000/s burst=5", &[5, 1], (0, Some(1))),
            ("fixed-window 60/1m", &[1], (59, Some(50))),
            ("fixed-window 60/1m", &[60], (0, Some(50))),
            ("fixed-window 60/1m", &[60, 1], (0, Some(50))),
            ("fixed-window 60/1m", &[], (60, Some(60))),
            ("sliding-log 60/1m", &[30, 30], (0, Some(60))),
            ("sliding-window 60/1m", &[20], (40, Some(40))),
            ("recent-average 1/s period=60s", &[1], (60, Some(60))),
        ] {
            let (rule, now) = (rule(text), Nanos::from_secs(70));
            let (state, decision) = after(&rule, costs, now);
            let available = Available::told(&rule, &decision, 0).unwrap_or_else(|| {
                let peek = rule.limit().decide(state, now, Cost::ONE, Mode::Peek).1;
                Available::peeked(&rule, &peek)
            });
            assert_eq!((available.units, available.seconds), expected, "{text} {costs:?}");
        }
    }

    #[test]
    fn a_parser_of_structured_fields_reads_them() {
        let quota = |units, window| Quota { units, window };
        let names = ["login", "gcra 1/s \"x\\y\" \u{e9}\n"];
        let policies =
            draft_11::policies(names.into_iter().zip([quota(60, Some(60)), quota(u64::MAX, None)]));
        let available =
            [Available { units: 50, seconds: Some(30) }, Available { units: 0, seconds: None }];
        let limits = draft_11::limits(names.into_iter().zip(available));
        for (header, parameters) in [
            (policies, [vec![("q", 60), ("w", 60)], vec![("q", GREATEST as i64)]]),
            (limits, [vec![("r", 50), ("t", 30)], vec![("r", 0)]]),
        ] {
            let list: sfv::List = Parser::new(header.unwrap().as_bytes()).parse().unwrap();
            let items = list.iter().map(|entry| match entry {
                ListEntry::Item(item) => item,
                ListEntry::InnerList(_) => panic!("an inner list"),
            });
            for ((item, name), expected) in
                items.zip(["login", "gcra 1/s \"x\\y\" "]).zip(parameters)
            {
                assert_eq!(item.bare_item.as_string().map(|text| text.as_str()), Some(name));
                let read: Vec<_> = item
                    .params
                    .iter()
                    .map(|(key, value)| match value {
                        BareItem::Integer(value) => (key.as_str(), i64::from(*value)),
                        _ => panic!("{value:?} is no integer"),
                    })
                    .collect();
                assert_eq!(read, expected);
            }
        }
        assert_eq!(draft_11::limits([].into_iter()), None);
    }
}
