//! The headers `RateLimit`, `RateLimit-Policy`, `Retry-After` and the older `X-RateLimit-*`. No other
//! code writes them.
//!
//! The syntax changes from draft to draft, so each draft has a module, and [`current`] is the one
//! in use.

use std::fmt::{self, Write};
use std::time::Duration;

use earrrl::algorithm::Replenishment;
use earrrl::{Action, Cost, Decision, Limit, Outcome, Quota, Rule, Wait};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

pub use draft_11 as current;

/// The quota that is available to a client, and the time for which it must last: the parameters `r`
/// and `t` of an item in `RateLimit`.
///
/// A client that spreads `units` over `seconds` is never denied; neither is one that sends all units
/// at once and then, at 0 units, rests for `seconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// The whole units that are available, at most the quota.
    pub units: u64,
    /// The whole seconds for which the units must last, at least 1; `None` if no wait helps.
    pub seconds: Option<u64>,
}

impl Available {
    /// Returns the quota for the charge at `place`, or `None` if the decision lacks its figures.
    /// The caller should then peek with [`peek_cost`] and call [`Available::from_peek`].
    ///
    /// ```
    /// use earrrl::{Cost, Nanos, Rule, Mode};
    /// use earrrl_tower::headers::Available;
    /// let rule: Rule = "gcra 2/s burst=60".parse()?;
    /// let (_, decision) = rule.limit().decide(None, Nanos::ZERO, Cost::ONE, Mode::Check);
    /// let available = Available::from_decision(&rule, &decision, 0);
    /// assert_eq!(available, Some(Available { units: 59, seconds: Some(30) }));
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn from_decision(rule: &Rule, decision: &Decision, place: usize) -> Option<Self> {
        Self::is_in(decision, rule, place).then(|| Self::from_peek(rule, decision))
    }

    /// Returns true if a decision has the figures of the charge at `place`.
    pub(crate) fn is_in(decision: &Decision, rule: &Rule, place: usize) -> bool {
        let has_wait = decision.outcome == Outcome::Deny
            || decision.remaining > 0
            || rule.limit().replenishment() == Replenishment::AtWindowEnd;
        decision.rule == place && has_wait
    }

    /// Returns the quota after a peek of [`peek_cost`] under this rule alone.
    ///
    /// ```
    /// use earrrl::{Cost, Mode, Nanos, Rule};
    /// use earrrl_tower::headers::{Available, peek_cost};
    /// let (rule, now): (Rule, _) = ("gcra 2/s burst=1".parse()?, Nanos::ZERO);
    /// let (state, allowed) = rule.limit().decide(None, now, Cost::ONE, Mode::Check);
    /// // The request used the last unit, and its decision does not say when the next one comes.
    /// assert_eq!(Available::from_decision(&rule, &allowed, 0), None);
    /// let cost = peek_cost(&allowed, 0, Cost::ONE);
    /// let (_, peek) = rule.limit().decide(state, now, cost, Mode::Peek);
    /// assert_eq!(Available::from_peek(&rule, &peek), Available { units: 0, seconds: Some(1) });
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn from_peek(rule: &Rule, decision: &Decision) -> Self {
        Self::of(rule, Quota::of(rule.limit()), decision)
    }

    /// Returns the same as [`from_peek`](Self::from_peek), given the rule's quota.
    pub(crate) fn of(rule: &Rule, quota: Quota, decision: &Decision) -> Self {
        match (decision.outcome, decision.retry_after) {
            (Outcome::Deny, Wait::For(wait)) => Self {
                units: 0,
                seconds: Some(seconds(wait)),
            },
            (Outcome::Deny, Wait::Never) => Self {
                units: 0,
                seconds: None,
            },
            (Outcome::Delay, _) => Self {
                units: 0,
                seconds: Some(seconds(decision.delay)),
            },
            _ => {
                let units = decision.remaining.min(quota.units);
                Self {
                    units,
                    seconds: earned_in(rule.limit(), units, decision),
                }
            }
        }
    }
}

/// Returns true if headers report rules with this action. A client must not learn that it is
/// shadow-banned or quarantined, and a dry run must not change responses.
///
/// ```
/// use earrrl::Action;
/// use earrrl_tower::headers::is_shown;
/// assert!(is_shown(Action::Deny));
/// assert!(!is_shown(Action::ShadowBan));
/// ```
pub fn is_shown(action: Action) -> bool {
    matches!(action, Action::Deny | Action::Delay { .. })
}

/// Returns the cost for a peek if the decision lacks the figures of the charge at `place`. It is
/// the charge's own cost if the charge was denied, so that the peek returns its wait, and otherwise
/// one unit.
///
/// ```
/// use earrrl::{Cost, Mode, Nanos, Rule};
/// use earrrl_tower::headers::peek_cost;
/// let (rule, five): (Rule, _) = ("gcra 1/s burst=2".parse()?, Cost::from_units(5));
/// let (_, denied) = rule.limit().decide(None, Nanos::ZERO, five, Mode::Check);
/// assert_eq!(peek_cost(&denied, 0, five), five);
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub fn peek_cost(decision: &Decision, place: usize, cost: Cost) -> Cost {
    if decision.is_over(place) {
        cost
    } else {
        Cost::ONE
    }
}

/// Returns the time in which `units` are earned, or the time until a fixed window ends; `None` under
/// concurrent, whose places come back as their holders end.
fn earned_in(limit: &Limit, units: u64, decision: &Decision) -> Option<u64> {
    match limit.replenishment() {
        Replenishment::AtWindowEnd if !decision.reset_after.is_zero() => {
            return Some(seconds(decision.reset_after));
        }
        Replenishment::AtWindowEnd | Replenishment::Steady => {}
    }
    if limit.is_concurrent() {
        return None;
    }
    // Rounded up, as waits are. The rate is rounded itself: a whole number of seconds may come out a
    // little above.
    let earned = units as f64 / decision.limit * (1.0 - 1e-12);
    (units > 0).then(|| (earned.ceil() as u64).max(1))
}

/// Rounds up to whole seconds, at least 1, since a client that retries sooner may be denied again.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs()
        .saturating_add(u64::from(wait.subsec_nanos() > 0))
        .max(1)
}

/// The syntax of draft-ietf-httpapi-ratelimit-headers-11.
pub mod draft_11 {
    use super::{Available, HeaderName, HeaderValue, Quota, Text, Write, fmt, value, write_number};

    /// The name of the header with the available quota.
    pub const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
    /// The name of the header with the rules' quotas.
    pub const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

    /// Returns the value of `RateLimit-Policy`, an item for each rule; `None` for no rule.
    ///
    /// ```
    /// use earrrl::{Quota, Rule};
    /// use earrrl_tower::headers::current::policies;
    /// let rule: Rule = "fixed-window 60/1m".parse()?;
    /// let header = policies([("login", Quota::of(rule.limit()))].into_iter());
    /// assert_eq!(header.unwrap(), "\"login\";q=60;w=60");
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn policies<'a>(rules: impl Iterator<Item = (&'a str, Quota)>) -> Option<HeaderValue> {
        list(rules, write_policy)
    }

    /// Returns the value of `RateLimit`, an item for each rule, the deciding one first; `None` for no
    /// rule.
    ///
    /// ```
    /// use earrrl_tower::headers::{Available, current::limits};
    /// let available = Available { units: 50, seconds: Some(30) };
    /// assert_eq!(limits([("login", available)].into_iter()).unwrap(), "\"login\";r=50;t=30");
    /// ```
    pub fn limits<'a>(rules: impl Iterator<Item = (&'a str, Available)>) -> Option<HeaderValue> {
        list(rules, write_limit)
    }

    /// Writes a rule's item of `RateLimit-Policy`. The unit is given where it is not requests.
    ///
    /// ```
    /// use earrrl::{Quota, Rule};
    /// use earrrl_tower::headers::current::write_policy;
    /// let rule: Rule = "concurrent 10 timeout=60s".parse()?;
    /// let mut text = String::new();
    /// write_policy(&mut text, "streams", Quota::of(rule.limit()))?;
    /// assert_eq!(text, "\"streams\";q=10;qu=\"concurrent-requests\"");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of `text`. Writing to memory never fails.
    pub fn write_policy(text: &mut impl Write, rule: &str, quota: Quota) -> fmt::Result {
        write_name(text, rule)?;
        write_number(text, ";q=", quota.units)?;
        if quota.is_concurrent {
            return text.write_str(";qu=\"concurrent-requests\"");
        }
        quota
            .window
            .map_or(Ok(()), |window| write_number(text, ";w=", window))
    }

    /// Writes a rule's item of `RateLimit`.
    ///
    /// ```
    /// use earrrl_tower::headers::{Available, current::write_limit};
    /// let mut text = String::new();
    /// write_limit(&mut text, "login", Available { units: 0, seconds: None })?;
    /// assert_eq!(text, "\"login\";r=0");
    /// # Ok::<(), std::fmt::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of `text`. Writing to memory never fails.
    pub fn write_limit(text: &mut impl Write, rule: &str, available: Available) -> fmt::Result {
        write_name(text, rule)?;
        write_available(text, available)
    }

    /// Returns the value of `RateLimit` for one rule, given its [`label`].
    pub(crate) fn limit(label: &[u8], available: Available) -> Option<HeaderValue> {
        let mut text = Text::default();
        text.0.extend_from_slice(label);
        write_available(&mut text, available).ok()?;
        value(&text)
    }

    /// Returns the beginning of a rule's items, which is written once for all requests.
    pub(crate) fn label(rule: &str) -> Box<[u8]> {
        let mut text = Text::default();
        // Writing to memory never fails.
        let _ = write_name(&mut text, rule);
        text.0.into_vec().into()
    }

    fn list<'a, T>(
        rules: impl Iterator<Item = (&'a str, T)>,
        write: impl Fn(&mut Text, &str, T) -> fmt::Result,
    ) -> Option<HeaderValue> {
        let mut text = Text::default();
        for (rule, item) in rules {
            if !text.0.is_empty() {
                text.write_str(", ").ok()?;
            }
            write(&mut text, rule, item).ok()?;
        }
        value(&text)
    }

    fn write_available(text: &mut impl Write, available: Available) -> fmt::Result {
        write_number(text, ";r=", available.units)?;
        available
            .seconds
            .map_or(Ok(()), |seconds| write_number(text, ";t=", seconds))
    }

    /// Writes a name as the string of a structured field, and leaves out characters that such a
    /// string cannot contain.
    fn write_name(text: &mut impl Write, name: &str) -> fmt::Result {
        text.write_str("\"")?;
        if name
            .bytes()
            .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
        {
            text.write_str(name)?;
        } else {
            for visible in name.chars().filter(|c| matches!(c, ' '..='~')) {
                if matches!(visible, '"' | '\\') {
                    text.write_char('\\')?;
                }
                text.write_char(visible)?;
            }
        }
        text.write_str("\"")
    }
}

/// Returns the value of `Retry-After` for a denied request; `None` if no wait helps.
///
/// ```
/// use earrrl::{Cost, Mode, Nanos, Rule};
/// use earrrl_tower::headers::retry_after;
/// let rule: Rule = "gcra 0.1/s burst=2".parse()?;
/// let decide = |cost| rule.limit().decide(None, Nanos::ZERO, Cost::from_units(cost), Mode::Check).1;
/// assert_eq!(retry_after(&decide(1)), None, "allowed");
/// assert_eq!(retry_after(&decide(3)), None, "denied for ever");
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub fn retry_after(decision: &Decision) -> Option<HeaderValue> {
    match (decision.outcome, decision.retry_after) {
        (Outcome::Deny, Wait::For(wait)) => Some(whole(seconds(wait))),
        _ => None,
    }
}

/// Returns a number as the value of a header. Numbers below 100 need no allocation, since most
/// waits are short.
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

/// Adds the older `X-RateLimit-Limit`, `-Remaining` and `-Reset`, with the figures of the deciding
/// rule.
///
/// ```
/// use earrrl::{Quota, Rule};
/// use earrrl_tower::headers::{Available, x_rate_limit};
/// let rule: Rule = "fixed-window 60/1m".parse()?;
/// let mut headers = http::HeaderMap::new();
/// let available = Available { units: 50, seconds: Some(30) };
/// x_rate_limit(Quota::of(rule.limit()), available, &mut headers);
/// assert_eq!(headers["x-ratelimit-limit"], "60");
/// assert_eq!(headers["x-ratelimit-remaining"], "50");
/// assert_eq!(headers["x-ratelimit-reset"], "30");
/// # Ok::<(), earrrl::RuleError>(())
/// ```
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

/// A buffer for a header's value. Few values need an allocation.
#[derive(Default)]
struct Text(SmallVec<[u8; 128]>);

impl Write for Text {
    #[inline]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// The greatest integer of a structured field, which has at most 15 digits.
const GREATEST: u64 = 999_999_999_999_999;

fn write_number(text: &mut impl Write, name: &str, value: u64) -> fmt::Result {
    text.write_str(name)?;
    text.write_str(itoa::Buffer::new().format(value.min(GREATEST)))
}

fn value(text: &Text) -> Option<HeaderValue> {
    if text.0.is_empty() {
        None
    } else {
        HeaderValue::from_bytes(&text.0).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earrrl::algorithm::State;
    use earrrl::{Mode, Nanos};
    use sfv::{BareItem, ListEntry, Parser};

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    /// Returns the state after requests of these costs, and the last decision.
    fn after(rule: &Rule, costs: &[u64], now: Nanos) -> (Option<State>, Decision) {
        let mut last = rule.limit().decide(None, now, Cost::ZERO, Mode::Peek);
        for cost in costs {
            last = rule
                .limit()
                .decide(last.0, now, Cost::from_units(*cost), Mode::Check);
        }
        last
    }

    #[test]
    fn available_quota_and_its_time() {
        for (text, costs, expected) in [
            ("gcra 2/s burst=60", &[1][..], (59, Some(30))),
            ("gcra 10/s burst=5", &[1], (4, Some(1))),
            ("gcra 2/s burst=60", &[60], (0, Some(1))),
            ("gcra 0.1/s burst=2", &[1, 1], (0, Some(10))),
            ("gcra 0.1/s burst=2", &[1, 2], (0, Some(10))),
            ("gcra 0.1/s burst=2", &[3], (0, None)),
            ("gcra 1000000/s burst=5", &[5, 1], (0, Some(1))),
            ("sliding-log 5/3s", &[1], (4, Some(3))),
            ("sliding-log 5/3s", &[2], (3, Some(2))),
            ("fixed-window 60/1m", &[1], (59, Some(50))),
            ("fixed-window 60/1m", &[60], (0, Some(50))),
            ("fixed-window 60/1m", &[60, 1], (0, Some(50))),
            ("fixed-window 60/1m", &[], (60, Some(60))),
            ("sliding-log 60/1m", &[30, 30], (0, Some(60))),
            ("sliding-window 60/1m", &[20], (40, Some(40))),
            ("recent-average 1/s period=60s", &[1], (60, Some(60))),
        ] {
            let rule = rule(text);
            let now = Nanos::from_secs(70);
            let (state, decision) = after(&rule, costs, now);
            let available = Available::from_decision(&rule, &decision, 0).unwrap_or_else(|| {
                let peek = rule.limit().decide(state, now, Cost::ONE, Mode::Peek).1;
                Available::from_peek(&rule, &peek)
            });
            assert_eq!(
                (available.units, available.seconds),
                expected,
                "{text} {costs:?}"
            );
        }
    }

    #[test]
    fn a_parser_of_structured_fields_reads_the_headers() {
        let quota = |units, window| Quota {
            units,
            window,
            is_concurrent: false,
        };
        let names = ["login", "gcra 1/s \"x\\y\" \u{e9}\n"];
        let policies = draft_11::policies(
            names
                .into_iter()
                .zip([quota(60, Some(60)), quota(u64::MAX, None)]),
        );
        let available = [
            Available {
                units: 50,
                seconds: Some(30),
            },
            Available {
                units: 0,
                seconds: None,
            },
        ];
        let limits = draft_11::limits(names.into_iter().zip(available));
        for (header, parameters) in [
            (
                policies,
                [vec![("q", 60), ("w", 60)], vec![("q", GREATEST as i64)]],
            ),
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
                assert_eq!(
                    item.bare_item.as_string().map(|text| text.as_str()),
                    Some(name)
                );
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
