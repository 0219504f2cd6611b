//! Calendar periods against a table that Python's zoneinfo and dateutil computed, `testdata/calendar/periods.csv`.

use std::collections::BTreeMap;
use std::time::Duration;

use earrrl::algorithm::{Algorithm, FixedWindow};
use earrrl::internal::Random;
use earrrl::{Cost, Limit, Mode, Nanos, Rule};

const TABLE: &str = include_str!("../../../../testdata/calendar/periods.csv");
const SECOND: i128 = 1_000_000_000;

fn limit(period: &str) -> FixedWindow {
    let rule: Rule = format!("fixed-window 5/{period}").parse().unwrap();
    match rule.limit() {
        Limit::FixedWindow(limit) => *limit,
        other => panic!("{other:?}"),
    }
}

/// The periods of each calendar: the nanoseconds at which they begin and end.
fn calendars() -> BTreeMap<&'static str, Vec<(i128, i128)>> {
    let mut calendars = BTreeMap::new();
    for line in TABLE.lines().skip(1) {
        let fields: Vec<_> = line.split(',').collect();
        let second = |at: usize| fields[at].parse::<i128>().unwrap() * SECOND;
        let periods: &mut Vec<_> = calendars.entry(fields[0]).or_default();
        periods.push((second(2), second(3)));
    }
    calendars
}

fn nanos(instant: i128) -> Nanos {
    Nanos::new(instant.try_into().unwrap())
}

#[test]
fn a_million_instants_are_in_the_periods_of_the_table() {
    let mut random = Random::new(1);
    let mut instants = 0;
    for (period, periods) in calendars() {
        let limit = limit(period);
        for (begins, ends) in periods {
            // A day that a zone has skipped begins and ends at the same instant.
            let Some(length) = (ends - begins).try_into().ok().filter(|length| *length > 0) else {
                continue;
            };
            let number = limit.number(nanos(begins));
            assert_eq!(limit.begins(number), begins, "{period} {begins}");
            assert_eq!(
                limit.number(nanos(ends)),
                number + 1 + skipped(&limit, number)
            );
            let inside = (0..150).map(|_| begins + i128::from(random.below(length)));
            for instant in inside.chain([ends - 1, ends - SECOND]) {
                let instant = nanos(instant);
                assert_eq!(limit.number(instant), number, "{period} {instant:?}");
                let left = Duration::from_nanos(ends as u64 - instant.get());
                assert_eq!(
                    limit.until_window_ends(instant),
                    left,
                    "{period} {instant:?}"
                );
                instants += 1;
            }
        }
    }
    assert!(instants > 1_000_000, "{instants}");
}

/// Returns the number of empty periods after one.
fn skipped(limit: &FixedWindow, number: u64) -> u64 {
    let is_empty = |next: &u64| limit.begins(*next) == limit.begins(next + 1);
    (number + 1..).take_while(is_empty).count() as u64
}

#[test]
fn a_count_lasts_until_the_second_in_which_the_period_ends() {
    for (period, periods) in calendars() {
        let limit = Limit::from(limit(period));
        for (begins, ends) in periods.into_iter().filter(|(begins, ends)| begins < ends) {
            let all = Cost::from_units(5);
            let (state, first) = limit.decide(None, nanos(begins), all, Mode::Check);
            let whole = Duration::from_nanos((ends - begins) as u64);
            assert!(
                first.allowed && first.reset_after == whole,
                "{period} {begins}"
            );
            let last = nanos(ends - SECOND);
            let denied = limit.decide(state.clone(), last, Cost::ONE, Mode::Check).1;
            let second = Some(Duration::from_secs(1));
            assert!(!denied.allowed, "{period} {begins}");
            assert_eq!(denied.retry_after.duration(), second, "{period} {begins}");
            let next = limit.decide(state, nanos(ends), all, Mode::Check).1;
            assert!(next.allowed, "{period} {begins}");
        }
    }
}

#[test]
fn words_of_the_table_keep_the_period_and_the_count() {
    let limit = limit("month from=15 tz=Europe/Berlin");
    let count = |window, count| earrrl::algorithm::fixed_window::Count { window, count };
    for (window, spent) in [(0, 1), (700, 123_456_789), (7000, (1 << 70) - 3)] {
        let state = count(window, spent);
        assert_eq!(limit.state_of(limit.word(&state)), Some(state));
    }
    let endless = limit.word(&count(3, u128::MAX));
    assert_eq!(limit.state_of(endless), Some(count(3, u128::MAX)));
    assert!(endless < limit.word(&count(4, 1)));
    for now in [0, 1_800_000_000, u64::MAX / 1_000_000_000].map(Nanos::from_secs) {
        let present = limit.charge(None, now, Cost::ONE);
        assert!((limit.idle(now)..limit.greatest(now)).contains(&limit.word(&present)));
        assert!((-(1 << 87)..1 << 87).contains(&limit.greatest(now)));
    }
}

#[test]
fn calendars_have_one_text_and_a_meaning_of_their_own() {
    let mut meanings = Vec::new();
    for (text, written) in [
        ("5/day", "5/1d"),
        ("5/day tz=UTC", "5/1d"),
        ("5/day tz=europe/berlin", "5/day tz=Europe/Berlin"),
        ("5/week", "5/week"),
        ("5/week tz=Asia/Kolkata", "5/week tz=Asia/Kolkata"),
        ("5/month from=1 tz=UTC", "5/month"),
        (
            "5/month tz=Europe/Berlin from=31",
            "5/month from=31 tz=Europe/Berlin",
        ),
        ("5/year from=04-06", "5/year from=04-06"),
        ("5/year from=4-5", "5/year from=04-05"),
        ("5/30d", "5/30d"),
        ("5/7d", "5/7d"),
    ] {
        let rule: Rule = format!("fixed-window {text}").parse().unwrap();
        let whole = Rule::from(*rule.limit()).to_string();
        assert_eq!(whole, format!("fixed-window {written} leaky"));
        assert_eq!(whole.parse::<Rule>().unwrap(), rule);
        meanings.push((rule.limit().meaning(), written));
    }
    for (meaning, text) in &meanings {
        let mut same = meanings.iter().filter(|(other, _)| other == meaning);
        assert!(same.all(|(_, other)| other == text), "{text}");
    }
}
