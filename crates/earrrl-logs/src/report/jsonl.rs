//! Writes each decision as a line of JSON, in which no field is ever omitted.

use std::io::{self, Write};

use earrrl::{Cost, Decision};

use crate::line::time::SECOND;

/// Writes a decision of one rule. `key` is already encoded as JSON, since every rule's line repeats
/// it.
///
/// ```
/// use earrrl::{Cost, Mode, Nanos, Rule};
/// let rule: Rule = "fixed-window 2/1m".parse()?;
/// let (_, decision) = rule.limit().decide(None, Nanos::ZERO, Cost::ONE, Mode::Check);
/// let mut line = Vec::new();
/// earrrl_logs::report::write_jsonl(&mut line, 0, "\"alice\"", (0, Cost::ONE), &decision)?;
/// let line = String::from_utf8(line)?;
/// assert!(line.starts_with(r#"{"t":0,"key":"alice","rule":0,"cost":1,"allowed":true,"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write(
    out: &mut impl Write,
    time: u64,
    key: &str,
    (rule, cost): (usize, Cost),
    decision: &Decision,
) -> io::Result<()> {
    write!(
        out,
        r#"{{"t":{},"key":{key},"rule":{rule},"cost":{cost},"#,
        Seconds(time.into())
    )?;
    write!(out, r#""allowed":{},"#, decision.allowed)?;
    write_figures(out, decision)
}

/// Writes the numbers of a decision, and ends its line.
///
/// # Errors
/// Returns the writer's error if writing fails.
pub fn write_figures(out: &mut impl Write, decision: &Decision) -> io::Result<()> {
    write!(out, r#""rate":"#)?;
    match decision.rate {
        Some(rate) => write!(out, "{rate:?}")?,
        None => write!(out, "null")?,
    }
    write!(out, r#","remaining":{},"retry_after":"#, decision.remaining)?;
    match decision.retry_after.duration() {
        Some(wait) => write!(out, "{}", Seconds(wait.as_nanos()))?,
        None => write!(out, "null")?,
    }
    writeln!(
        out,
        r#","reset_after":{}}}"#,
        Seconds(decision.reset_after.as_nanos())
    )
}

/// A duration in nanoseconds that is displayed in seconds, exactly and without superfluous digits.
///
/// ```
/// use earrrl_logs::report::jsonl::Seconds;
/// assert_eq!(Seconds(1_250_000_000).to_string(), "1.25");
/// ```
pub struct Seconds(pub u128);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whole = self.0 / u128::from(SECOND);
        let mut fraction = self.0 % u128::from(SECOND);
        write!(f, "{whole}")?;
        if fraction == 0 {
            return Ok(());
        }
        let mut digits = 9;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            digits -= 1;
        }
        write!(f, ".{fraction:0digits$}")
    }
}

#[cfg(test)]
mod tests {
    use earrrl::{Limit, Mode, Nanos, Rule};

    use super::*;

    #[test]
    fn seconds_are_exact_and_short() {
        let cases = [
            (0, "0"),
            (1_500_000_000, "1.5"),
            (1_111_111_111_123_456_789, "1111111111.123456789"),
            (10, "0.00000001"),
            (60_000_000_000, "60"),
        ];
        for (nanos, text) in cases {
            assert_eq!(Seconds(nanos).to_string(), text);
        }
    }

    fn line(rule: &str, cost: &str) -> String {
        let rule: Rule = rule.parse().unwrap();
        let limit: &Limit = rule.limit();
        let time = 1_500_000_000;
        let cost = cost.parse().unwrap();
        let (_, decision) = limit.decide(None, Nanos::new(time), cost, Mode::Check);
        let mut out = Vec::new();
        write(&mut out, time, "\"a\"", (3, cost), &decision).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_field_is_always_there() {
        assert_eq!(
            line("gcra 1/s burst=2", "0.5"),
            "{\"t\":1.5,\"key\":\"a\",\"rule\":3,\"cost\":0.5,\"allowed\":true,\"rate\":null,\
             \"remaining\":1,\"retry_after\":0,\"reset_after\":0.5}\n"
        );
        assert_eq!(
            line("fixed-window 2/1s", "3"),
            "{\"t\":1.5,\"key\":\"a\",\"rule\":3,\"cost\":3,\"allowed\":false,\"rate\":0.0,\
             \"remaining\":2,\"retry_after\":null,\"reset_after\":0}\n"
        );
    }
}
