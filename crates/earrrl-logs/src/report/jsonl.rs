//! Writes each decision as a line of JSON, in which no field is ever omitted.

use std::io::{self, Write};

use earrrl::{Cost, Decision};

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
        r#"{{"t":{},"key":{key},"rule":{rule},"cost":{cost},"allowed":{},"#,
        Cost::from_billionths(time.into()),
        decision.allowed,
    )?;
    write_figures(out, decision)
}

/// Writes the numbers of a decision, and ends its line. Times are in seconds: exact decimals, as costs are.
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
        Some(wait) => write!(out, "{}", Cost::from_billionths(wait.as_nanos()))?,
        None => write!(out, "null")?,
    }
    writeln!(
        out,
        r#","reset_after":{}}}"#,
        Cost::from_billionths(decision.reset_after.as_nanos())
    )
}

#[cfg(test)]
mod tests {
    use earrrl::{Limit, Mode, Nanos, Rule};

    use super::*;

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
