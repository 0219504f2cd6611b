//! Simulated clients, and the text that describes one.

use std::str::FromStr;
use std::time::Duration;

use earrrl::internal::{RuleWords, Word};
use earrrl::{Cost, Rate, RuleError};

/// A simulated client.
///
/// ```
/// use earrrl_logs::simulate::{Client, Pattern};
/// let client: Client = "crawler bursty 20 every=30s gap=10ms from=1m until=5m retry=500ms".parse()?;
/// assert!(matches!(client.pattern, Pattern::Bursty { size: 20, .. }));
/// assert!("crawler hourly 3".parse::<Client>().is_err());
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// The client's name.
    pub name: String,
    /// The instants at which the client wants to send.
    pub pattern: Pattern,
    /// The time at which the client starts.
    pub from: Duration,
    /// The time before which the client stops sending; `None` if it sends until the simulation
    /// ends.
    pub until: Option<Duration>,
    /// The cost of each request.
    pub cost: Cost,
    /// The client's reaction to a denied request.
    pub reaction: Reaction,
    /// The number of workers that share the client's key, at most [`MAX_WORKERS`]: each sends by the
    /// whole pattern, and reacts for itself.
    pub workers: u32,
}

/// The greatest number of workers of a client.
pub const MAX_WORKERS: u32 = 10_000;

/// The instants at which a client wants to send.
///
/// ```
/// use earrrl_logs::simulate::{Client, Pattern};
///
/// let client: Client = "alice steady 10/s".parse()?;
/// assert!(matches!(client.pattern, Pattern::Steady(rate) if rate.per_second_f64() == 10.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Evenly spaced requests: `steady 10/s`.
    Steady(Rate),
    /// Random requests at this average rate, each independent of all others: `random 10/s`.
    Random(Rate),
    /// Bursts of `size` requests, `gap` apart, that start at each multiple of `every`: `bursty 20
    /// every=30s gap=10ms`.
    Bursty {
        /// The number of requests in a burst.
        size: u32,
        /// The time from the start of one burst to the start of the next.
        every: Duration,
        /// The time from one request of a burst to the next.
        gap: Duration,
    },
}

/// A client's reaction to a denied request.
///
/// ```
/// use earrrl_logs::simulate::{Client, Reaction};
///
/// let client: Client = "alice steady 10/s obey".parse()?;
/// assert_eq!(client.reaction, Reaction::Obey);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The client goes on sending as planned.
    Ignore,
    /// The client sends the same request again after this long, until it is allowed, and drops the
    /// requests planned for the meantime: `retry=500ms`.
    Retry(Duration),
    /// Like [`Reaction::Retry`], but after the decision's `retry_after`; the client stops if that
    /// is never: `obey`.
    Obey,
}

impl FromStr for Client {
    type Err = RuleError;

    /// Parses `NAME PATTERN [from=T] [until=T] [cost=C] [retry=T|obey] [workers=N]`.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut words = RuleWords::new(text);
        let name = words
            .next("expected a name, then steady, random or bursty")?
            .text
            .into();
        let pattern = pattern(&mut words)?;
        let time = |word: Option<Word<'_>>| word.as_ref().map(Word::duration).transpose();
        let from = time(words.option("from")?)?.unwrap_or_default();
        let end = words.option("until")?;
        let until = time(end)?;
        if let Some(end) = end.filter(|_| until.is_some_and(|until| until <= from)) {
            return Err(end.expected("a time after `from`"));
        }
        let cost = match words.option("cost")? {
            Some(word) => word
                .text
                .parse()
                .map_err(|error: RuleError| error.at(word.column))?,
            None => Cost::ONE,
        };
        let reaction = reaction(&mut words)?;
        let workers = match words.option("workers")? {
            Some(word) => {
                let count = word.text.parse().ok();
                let count = count.filter(|count| (1..=MAX_WORKERS).contains(count));
                count.ok_or_else(|| word.expected("1 to 10000 workers"))?
            }
            None => 1,
        };
        words.finish()?;
        Ok(Self {
            name,
            pattern,
            from,
            until,
            cost,
            reaction,
            workers,
        })
    }
}

fn pattern(words: &mut RuleWords<'_>) -> Result<Pattern, RuleError> {
    let name = words.next("expected steady, random or bursty")?;
    match name.text {
        "steady" => Ok(Pattern::Steady(
            words.next("expected a rate such as 10/s")?.rate()?,
        )),
        "random" => Ok(Pattern::Random(
            words.next("expected a rate such as 10/s")?.rate()?,
        )),
        "bursty" => bursty(words),
        _ => Err(name.expected("steady, random or bursty")),
    }
}

fn bursty(words: &mut RuleWords<'_>) -> Result<Pattern, RuleError> {
    let size = words.next("expected how many requests a burst has")?;
    let count = size
        .text
        .parse()
        .ok()
        .filter(|count| (1..=1_000_000).contains(count));
    let every = words.option("every")?;
    let every = every
        .as_ref()
        .map(Word::duration)
        .transpose()?
        .filter(|every| !every.is_zero());
    let gap = words
        .option("gap")?
        .as_ref()
        .map(Word::duration)
        .transpose()?
        .unwrap_or_default();
    let (Some(count), Some(every)) = (count, every) else {
        return Err(size.error(format!(
            "expected 1 to 1000000 requests and the time between bursts, such as 20 every=30s; \
             found {}",
            size.quoted()
        )));
    };
    if gap.saturating_mul(count) > every {
        return Err(size.error(format!(
            "{count} requests {gap:?} apart take longer than {every:?}"
        )));
    }
    Ok(Pattern::Bursty {
        size: count,
        every,
        gap,
    })
}

fn reaction(words: &mut RuleWords<'_>) -> Result<Reaction, RuleError> {
    let obey = words.flag(&["obey"])?;
    match (words.option("retry")?, obey) {
        (None, None) => Ok(Reaction::Ignore),
        (None, Some(_)) => Ok(Reaction::Obey),
        (Some(word), None) => match word.duration()? {
            Duration::ZERO => Err(word.expected("a time above 0")),
            wait => Ok(Reaction::Retry(wait)),
        },
        (Some(_), Some(word)) => {
            Err(word.error("expected either retry=T or obey, not both".into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told_with_their_column() {
        for (text, column, message) in [
            ("", 1, "expected a name"),
            ("a", 2, "expected steady, random or bursty"),
            ("a steadily 1/s", 3, "`steadily` is not steady"),
            ("a steady 1", 10, "is not N/D"),
            ("a bursty 0 every=1s", 10, "expected 1 to 1000000"),
            ("a bursty 5", 10, "every=30s"),
            ("a bursty 5 every=1s gap=300ms", 10, "take longer than 1s"),
            ("a steady 1/s retry=0s", 20, "is not a time above 0"),
            ("a steady 1/s obey retry=1s", 14, "not both"),
            ("a steady 1/s cost=x", 19, "is not a decimal number"),
            (
                "a steady 1/s workers=0",
                22,
                "`0` is not 1 to 10000 workers",
            ),
            ("a steady 1/s sometimes", 14, "sometimes"),
            (
                "a steady 1/s from=10s until=5s",
                29,
                "`5s` is not a time after `from`",
            ),
        ] {
            let error = text.parse::<Client>().unwrap_err();
            assert_eq!(error.column(), Some(column), "{text}: {error}");
            assert!(error.message().contains(message), "{text}: {error}");
        }
    }
}
