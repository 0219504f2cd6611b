//! The rule grammar: any text is read or refused, and what is read prints back.
#![no_main]

use earrrl::{Cost, Mode, Nanos, Rule};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let rule: Rule = match text.parse() {
        Ok(rule) => rule,
        Err(error) => {
            let error: earrrl::RuleError = error;
            let column = error.column().unwrap_or(1);
            assert!((1..=text.chars().count() + 1).contains(&column), "{error}");
            return;
        }
    };
    assert_eq!(rule.to_string(), text.trim());
    assert_eq!(rule.to_string().parse::<Rule>().as_ref(), Ok(&rule));
    let spelled_out = Rule::from(*rule.limit());
    assert_eq!(spelled_out.to_string().parse::<Rule>().as_ref(), Ok(&rule));
    let now = Nanos::from_secs(1_700_000_000);
    let (state, first) = rule.limit().decide(None, now, Cost::ONE, Mode::Check);
    let (_, second) = rule.limit().decide(state, now, Cost::ONE, Mode::Check);
    assert!(first.allowed || !second.allowed);
});
