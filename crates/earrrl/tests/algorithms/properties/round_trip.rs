//! Text to rule to text.

use earrrl::{Cost, Rule};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::strategies::{cases, limits};

proptest! {
    #![proptest_config(cases(2000))]
    #[test]
    fn limits_print_as_rules_that_read_as_the_same_limit(limit in limits()) {
        // `max_entries` has no text.
        let limit = match limit {
            earrrl::Limit::SlidingLog(log) => log.with_max_entries(10_000).into(),
            limit => limit,
        };
        let text = Rule::from(limit).to_string();
        let rule: Rule = text.parse().unwrap();
        prop_assert_eq!(rule.limit(), &limit);
        prop_assert_eq!(rule.to_string(), text);
    }

    #[test]
    fn rules_print_as_they_were_written(
        head in select(vec![
            "recent-average 1/s half-life=10s", "recent-average 0.5/s period=1m30s",
            "recent-average 1e3/250ms half-life=1.5h",
            "exponential 60/1m", "fixed-window 60/m", "sliding-log 1.25e1/1h", "sliding-counter 60/d",
        ]),
        policy in select(vec!["", "strict", "leaky"]),
        blanks in select(vec![" ", "  ", "\t"]),
    ) {
        let text = [head, policy].join(blanks);
        let text = text.trim();
        let rule: Rule = text.parse().unwrap();
        prop_assert_eq!(rule.to_string(), text);
        prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule.clone());
        prop_assert_eq!(Rule::from(*rule.limit()), rule);
    }

    #[test]
    fn options_come_in_any_order(
        options in subsequence(vec!["sub-windows=60", "lenient", "strict"], 0..=3).prop_shuffle(),
    ) {
        let written: Rule = format!("sliding-window 600/1h {}", options.join(" ")).parse().unwrap();
        let mut sorted = options;
        sorted.sort_unstable();
        let ordered: Rule = format!("sliding-window 600/1h {}", sorted.join(" ")).parse().unwrap();
        prop_assert_eq!(written, ordered);
    }

    #[test]
    fn costs_print_as_they_read(billionths in 0u128..=Cost::MAX.billionths()) {
        let cost = Cost::from_billionths(billionths);
        prop_assert_eq!(cost.to_string().parse::<Cost>().unwrap(), cost);
    }

    /// Whatever is typed: an answer, and a column within the text.
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}|[a-z0-9=/. -]{0,80}") {
        if let Err(error) = text.parse::<Rule>() {
            let column = error.column().unwrap_or(1);
            prop_assert!((1..=text.chars().count() + 1).contains(&column), "{error}");
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

#[test]
fn equal_rules_are_equal_however_they_are_written() {
    for (one, other) in [
        ("gcra 1/s burst=60", "token-bucket 60 refill=60/1m"),
        (
            "token-bucket 60 refill=7/m",
            "credit-pool 6e1 refill=0.7/6s",
        ),
        (
            "recent-average 7/1m half-life=10s",
            "recent-average 0.7/6s half-life=10000ms strict",
        ),
        ("fixed-window 60/m", "fixed-window 60/1m leaky"),
        ("fixed-window 60/min", "fixed-window 60/minute"),
        ("gcra 1/sec burst=60", "gcra 60/min burst=60"),
        ("gcra 2/hour burst=2", "gcra 48/day burst=2"),
        (
            "sliding-window 60/1s",
            "sliding-window 60/1s sub-windows=50 harsh leaky",
        ),
    ] {
        assert_eq!(
            one.parse::<Rule>().unwrap(),
            other.parse().unwrap(),
            "{one}"
        );
    }
}

#[test]
fn errors_name_the_column_the_value_and_what_would_be_right() {
    for (text, error) in [
        ("", "column 1: expected recent-average"),
        (
            "leaky-bucket 1/s",
            "column 1: unknown algorithm `leaky-bucket`; expected recent-average",
        ),
        (
            "fixed-window 1,000/1m",
            "column 15: expected a blank between words, got `,`; a number has no commas, as in `1000`",
        ),
        (
            "“fixed-window 5/1m”",
            "column 1: expected a rule without typographic quotes",
        ),
        (
            "gcra 5/month burst=5",
            "column 8: `month` is not a unit such as s, m, h, d; 30 days are `30d`, and fixed-window takes `month`",
        ),
        (
            "fixed-window 5/1d tz=Europe/Berlin",
            "column 22: `tz` and `from` need a calendar period, not `1d`: day, week, month or year, as in \
             `fixed-window 1000/day tz=Europe/Berlin`",
        ),
        (
            "fixed-window 5/month tz=Europe/Berln",
            "column 25: `Europe/Berln` is not an IANA time zone such as Europe/Berlin or UTC; did you mean \
             `Europe/Berlin`?",
        ),
        (
            "fixed-window 5/month from=32",
            "column 27: `32` is not a day of the month from 1 to 31",
        ),
        (
            "fixed-window 5/year from=02-30",
            "column 26: `02-30` is not a month and a day of it, such as 04-06",
        ),
        (
            "fixed-window 5/week from=3",
            "column 26: `from` is for months and years; a week begins at midnight of Monday",
        ),
        (
            "fixed-window 5/1m start=second",
            "column 25: `second` is not first, for windows that begin with a client's first request; leave `start` out \
             for windows that begin at multiples of their length since 1970",
        ),
        (
            "fixed-window 5/month start=first",
            "column 28: `start` needs a duration, not the calendar's `month`, as in `fixed-window 1000/30d start=first`",
        ),
        (
            "sliding-counter 5/week",
            "column 19: `week` is not a unit such as s, m, h, d; 7 days are `7d`, and fixed-window takes `week`",
        ),
        (
            "5/minute",
            "column 1: expected an algorithm before `5/minute`, as in `fixed-window 5/minute`",
        ),
        (
            "1000/month",
            "column 1: expected an algorithm before `1000/month`, as in `fixed-window 1000/month`",
        ),
        (
            "/month",
            "column 1: expected an algorithm before `/month`, as in `fixed-window 5/month`",
        ),
        (
            "5 per minute",
            "column 1: expected an algorithm before `5`, as in `fixed-window 5/1m`",
        ),
        (
            "gcra 5/s",
            "column 9: expected burst=60, as in `gcra 1/s burst=60`",
        ),
        (
            "gcra 5/s brust=5",
            "column 10: unknown parameter `brust`; did you mean `burst`, as in `gcra 1/s burst=60`?",
        ),
        (
            "token-bucket 60 speed=5",
            "column 17: unknown parameter `speed`; expected `refill`, as in `token-bucket 60 refill=1/s`",
        ),
        (
            "recent-average 5/s time=5",
            "column 20: unknown parameter `time`; expected `half-life` or `period`, as in `recent-average",
        ),
        (
            "fixed-window 60/1m burst=6",
            "column 20: unknown parameter `burst`; known here: strict, leaky, tz, from",
        ),
        ("recent-average", "column 15: expected a rate such as 1/s"),
        (
            "recent-average 1",
            "column 16: `1` is not N/D, such as 60/1m",
        ),
        (
            "recent-average 0/s half-life=1s",
            "column 16: 0 per 1s is not from 1 in ten years",
        ),
        (
            "recent-average -1/s half-life=1s",
            "column 16: `-1` is not a decimal number",
        ),
        (
            "recent-average NaN/s half-life=1s",
            "column 16: `NaN` is not a decimal number",
        ),
        (
            "recent-average 1/s",
            "column 19: expected half-life=10s or period=10s",
        ),
        (
            "recent-average 1/s half-life=1s period=1s",
            "column 40: expected either",
        ),
        (
            "recent-average 1/s half-life=1s half-life=2s",
            "column 33: `half-life` is given twice",
        ),
        (
            "recent-average 1/s half-life=1us",
            "column 30: half-life: 1µs is not from 1ms",
        ),
        (
            "recent-average 2e9/s half-life=1s",
            "column 16: 2000000000 per 1s is not from",
        ),
        (
            "gcra 1/s burst=60 strict",
            "column 19: a token bucket can't be strict",
        ),
        ("gcra 1/s burst=0", "column 16: burst: 0 is not above 0"),
        (
            "exponential 2e9/1m",
            "column 13: limit: 2000000000 is above 1e9",
        ),
        (
            "sliding-window 60/1m sub-windows=0",
            "column 34: sub-windows: 0 is not from 1 to",
        ),
        (
            "sliding-window 60/1m sub-windows=+5",
            "column 34: `+5` is not a whole number",
        ),
        (
            "fixed-window 60/1m lenient",
            "column 20: unexpected `lenient`; known here: strict",
        ),
        (
            "fixed-window 60/1m leaky strict",
            "column 26: `strict` is one too many",
        ),
        (
            "fixed-window 1e30/1m",
            "column 14: `1e30` is not a whole multiple of 1e-9 up to 1e18",
        ),
    ] {
        let found = text.parse::<Rule>().unwrap_err().to_string();
        assert!(found.starts_with(error), "`{text}`: {found}");
    }
}

#[test]
fn near_misses_get_a_suggestion() {
    for (text, meant) in [
        ("fixed-windw 1/s", "fixed-window"),
        ("recent-averge 1/s half-life=1s", "recent-average"),
        ("gcar 1/s burst=1", "gcra"),
        ("sliding-window 1/s subwindows=6", "sub-windows"),
        ("recent-average 1/s half-life=1s strct", "strict"),
    ] {
        let found = text.parse::<Rule>().unwrap_err().to_string();
        assert!(
            found.ends_with(&format!("; did you mean `{meant}`?")),
            "`{text}`: {found}"
        );
    }
}
