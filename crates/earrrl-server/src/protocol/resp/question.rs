//! Questions, the commands that request a decision: their words become the rule, the client's limit under it, the key
//! of the stored state and the cost; the service decides; the decision becomes the reply.

use earrrl::internal::table::KeyHash;
use earrrl::{Cost, MAX_CHARGES, Mode, Outcome};

use super::codec::Request;
use super::reply::Writer;
use super::reply::{write_answer, write_brief, write_throttled};
use super::session::{Refusal, Session};
use crate::config::access::{Access, Scope};
use crate::engine::throttle::{Call, Throttled};
use crate::service::Service;
use crate::service::ask::Ask;
use crate::service::attributes::shown;
use crate::service::error::AskError;
use crate::service::rule::ActiveRule;
use crate::service::rules::ActiveRules;

/// A command that requests a decision. It changes nothing but the state of the client that it
/// names.
#[derive(Debug)]
pub(super) enum Question<'a> {
    /// `CL.THROTTLE`, which states the limit in the command itself.
    Throttle {
        key: &'a [u8],
        call: Call,
        /// The hash of the key, if the state of this key was prefetched.
        hash: Option<KeyHash>,
    },
    /// `EARRRL.CHECK`, `EARRRL.PEEK` or `EARRRL.CHARGE` with one configured rule.
    Ask { ask: Ask<'a>, mode: Mode },
    /// `EARRRL.ALLOW`, a check with a shorter reply.
    Allow(Ask<'a>),
    /// One of the commands of [`Question::Ask`] with several charges, which `AND` separates.
    Several { asks: Vec<Ask<'a>>, mode: Mode },
    /// A command that is invalid or not permitted, and is answered with this error.
    Refused(Refusal),
}

impl Question<'_> {
    /// Prefetches the state of the client that the question names, if it names exactly one stored
    /// state.
    #[inline]
    pub(super) fn prefetch(&mut self, service: &Service) {
        match self {
            Self::Throttle { key, hash, .. } => {
                *hash = Some(service.engine().throttle.prefetch(key));
            }
            Self::Ask { ask, .. } | Self::Allow(ask) => service.prefetch(ask),
            Self::Several { .. } | Self::Refused(_) => {}
        }
    }
}

impl Session {
    /// Parses a request as a question. Returns `None` for any other command, and for all commands
    /// between `MULTI` and `EXEC`.
    #[inline]
    pub(super) fn question<'a>(
        &mut self,
        request: &Request<'a>,
        rules: &'a ActiveRules,
    ) -> Option<Question<'a>> {
        if self.transaction.is_some() {
            return None;
        }
        let name = *request.words.first()?;
        let mut upper = [0; 13];
        let upper = upper.get_mut(..name.len())?;
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        let parsed = match &*upper {
            b"CL.THROTTLE" => self.parse_throttle(request),
            b"EARRRL.CHECK" => self.parse_ask(request, rules, Mode::Check),
            b"EARRRL.ALLOW" => self.parse_allow(request, rules),
            b"EARRRL.PEEK" => self.parse_ask(request, rules, Mode::Peek),
            b"EARRRL.CHARGE" => self.parse_ask(request, rules, Mode::Charge),
            _ => return None,
        };
        Some(parsed.unwrap_or_else(Question::Refused))
    }

    /// Parses `EARRRL.CHECK rule key [COST c] [AND rule key [COST c] …]`; `EARRRL.PEEK` and
    /// `EARRRL.CHARGE` have the same words.
    #[inline]
    fn parse_ask<'a>(
        &mut self,
        request: &Request<'a>,
        rules: &'a ActiveRules,
        mode: Mode,
    ) -> Result<Question<'a>, Refusal> {
        self.may(mode.into())?;
        let Some(named) = parse_one(request)? else {
            return parse_several(request, &self.access, rules, mode);
        };
        let rule = match self.rule(named.rule, rules) {
            Some(rule) => {
                self.access.permit_rule(&rule.name)?;
                rule
            }
            None => self
                .server
                .service
                .inline_rule::<Refusal>(&self.access, named.rule)?,
        };
        let ask = named.of(rule);
        Ok(Question::Ask { ask, mode })
    }

    /// Parses `CL.THROTTLE key max_burst count period [quantity]`.
    #[inline]
    fn parse_throttle<'a>(&self, request: &Request<'a>) -> Result<Question<'a>, Refusal> {
        self.may(Scope::Check)?;
        self.access.permit_all_rules()?;
        let [_, key, numbers @ ..] = &request.words[..] else {
            return Err(Refusal::WordCount);
        };
        if !matches!(numbers.len(), 3..=4) {
            return Err(Refusal::WordCount);
        }
        let number = |place: usize, name| match numbers.get(place) {
            Some(text) => integer(text).ok_or_else(|| wrong(name, text, "a whole number")),
            None => Ok(1),
        };
        let max_burst = number(0, "max_burst")?;
        let count = number(1, "count")?;
        let period = number(2, "period")?;
        let quantity = number(3, "quantity")?;
        let call = Call::new(max_burst, count, period, quantity)
            .map_err(|error| Refusal::Error(error.to_string()))?;
        Ok(Question::Throttle {
            key,
            call,
            hash: None,
        })
    }

    /// Parses `EARRRL.ALLOW rule key [COST c]`.
    #[inline]
    fn parse_allow<'a>(
        &mut self,
        request: &Request<'a>,
        rules: &'a ActiveRules,
    ) -> Result<Question<'a>, Refusal> {
        self.may(Scope::Check)?;
        let named = parse_one(request)?.ok_or(Refusal::WordCount)?;
        let rule = self.rule(named.rule, rules);
        let rule = rule.ok_or_else(|| AskError::unknown_rule(named.rule))?;
        self.access.permit_rule(&rule.name)?;
        Ok(Question::Allow(named.of(rule)))
    }

    /// Returns the rule of this name. The rule that the client named last is compared first, since
    /// it is the most likely one.
    #[inline]
    fn rule<'a>(&mut self, name: &[u8], rules: &'a ActiveRules) -> Option<&'a ActiveRule> {
        if let Some(rule) = rules.at(self.last_rule, name) {
            return Some(rule);
        }
        self.last_rule = rules.position(name)?;
        rules.at(self.last_rule, name)
    }
}

/// Decides a question, and writes the reply to `out`.
#[inline]
pub(super) async fn decide(
    session: &Session,
    question: &Question<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let service = &session.server.service;
    let version = session.version;
    match question {
        Question::Throttle { key, call, hash } => {
            let throttle = &service.engine().throttle;
            let throttled = match service.engine().waits() {
                true => service
                    .engine()
                    .throttle(key, *call)
                    .await
                    .map_err(AskError::from)?,
                false => throttle.throttle(hash.unwrap_or_else(|| throttle.hash(key)), *call),
            };
            count(session, *call, throttled);
            write_throttled(throttled, &mut Writer::new(out, version));
        }
        Question::Ask { ask, mode } => {
            let answer = service.ask(ask, *mode).await?;
            write_answer(&answer, false, &mut Writer::new(out, version));
        }
        Question::Allow(ask) => {
            let brief = service.check(ask).await?;
            write_brief(brief, &mut Writer::new(out, version));
        }
        // The futures of rare questions are boxed, so that they take no memory in every connection.
        Question::Several { asks, mode } => {
            let answer = Box::pin(service.ask_all(asks, *mode)).await?;
            write_answer(&answer, true, &mut Writer::new(out, version));
        }
        Question::Refused(refusal) => session.refuse(refusal, out),
    }
    Ok(())
}

#[inline]
fn count(session: &Session, call: Call, throttled: Throttled) {
    if !call.only_asks() {
        let outcome = if throttled.limited {
            Outcome::Deny
        } else {
            Outcome::Allow
        };
        session.server.service.metrics.throttle.count(outcome);
    }
}

/// The words of one charge: `rule key [COST c]`.
#[derive(Clone, Copy)]
struct Named<'a> {
    rule: &'a [u8],
    key: &'a [u8],
    cost: Option<Cost>,
}

impl<'a> Named<'a> {
    #[inline]
    fn of(self, rule: &'a ActiveRule) -> Ask<'a> {
        Ask::new(rule, self.key, self.cost)
    }
}

/// Parses the words of a command with one charge. Returns `None` if the command has other words.
#[inline]
fn parse_one<'a>(request: &Request<'a>) -> Result<Option<Named<'a>>, Refusal> {
    let (rule, key, cost) = match request.words[..] {
        [_, rule, key] => (rule, key, None),
        [_, rule, key, word, text] if is_word(word, "COST") => (rule, key, Some(cost(text)?)),
        _ => return Ok(None),
    };
    Ok(Some(Named { rule, key, cost }))
}

/// Parses several charges: `rule key [COST c] [AND rule key [COST c] …]`.
#[cold]
fn parse_several<'a>(
    request: &Request<'a>,
    access: &Access,
    rules: &'a ActiveRules,
    mode: Mode,
) -> Result<Question<'a>, Refusal> {
    let mut words = request.words.iter().copied().skip(1).peekable();
    let mut all = Vec::new();
    loop {
        let (Some(rule), Some(key)) = (words.next(), words.next()) else {
            return Err(Refusal::WordCount);
        };
        let cost = match words.next_if(|word| is_word(word, "COST")) {
            Some(_) => Some(cost(words.next().ok_or(Refusal::WordCount)?)?),
            None => None,
        };
        all.push(Named { rule, key, cost });
        match words.next() {
            None => break,
            Some(word) if !is_word(word, "AND") => {
                return Err(wrong("after a key", word, "COST or AND"));
            }
            Some(_) if all.len() < MAX_CHARGES => {}
            Some(_) => {
                let text = format!("a command may charge at most {MAX_CHARGES} rules");
                return Err(Refusal::Error(text));
            }
        }
    }
    let ask = |named: Named<'a>| {
        let rule = rules.named(named.rule)?;
        access.permit_rule(&rule.name)?;
        Ok(named.of(rule))
    };
    let asks = all.into_iter().map(ask).collect::<Result<_, Refusal>>()?;
    Ok(Question::Several { asks, mode })
}

/// Parses a decimal integer as Redis does: a minus sign is permitted, a plus sign and spaces are
/// not.
#[inline]
fn integer(text: &[u8]) -> Option<i64> {
    // Up to 18 digits cannot overflow, and nearly all numbers are that short.
    if matches!(text.len(), 1..=18) && text.iter().all(u8::is_ascii_digit) {
        return Some(
            text.iter()
                .fold(0, |value, digit| value * 10 + i64::from(digit - b'0')),
        );
    }
    if text.first() == Some(&b'+') {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Returns true if a word of a command is this one, in upper or lower case.
#[inline]
pub(super) fn is_word(word: &[u8], expected: &str) -> bool {
    word.eq_ignore_ascii_case(expected.as_bytes())
}

/// Parses the cost of a charge. Returns the error for the client if it is invalid.
pub(super) fn cost(text: &[u8]) -> Result<Cost, Refusal> {
    let cost = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    cost.ok_or_else(|| wrong("cost", text, "a number from 0 to 1e18, a multiple of 1e-9"))
}

/// Returns the error about a word that is no value of its field.
#[cold]
pub(super) fn wrong(field: &str, text: &[u8], expected: &str) -> Refusal {
    let text = shown(&String::from_utf8_lossy(text));
    Refusal::Error(format!("{field}: `{text}` is not {expected}"))
}

/// A question, and the length of its request in bytes.
#[derive(Debug)]
pub(super) struct Gathered<'a> {
    pub(super) question: Question<'a>,
    pub(super) length: usize,
}

/// Questions that were gathered from the input and are about to be answered.
pub(super) type Questions<'a> = Vec<Gathered<'a>>;

/// Empties the list but keeps its allocation, for questions that borrow from another input.
#[inline]
pub(super) fn recycle<'a>(questions: Questions<'_>) -> Questions<'a> {
    // Collecting from a vector's own iterator reuses the vector's allocation.
    questions.into_iter().map_while(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that an emptied list keeps its allocation, so that batches need not allocate one.
    #[test]
    fn recycling_keeps_the_allocation() {
        let mut questions = Questions::with_capacity(8);
        let refused = Question::Refused(Refusal::WordCount);
        questions.push(Gathered {
            question: refused,
            length: 9,
        });
        let before = questions.as_ptr();
        let after = recycle(questions);
        assert_eq!(
            (after.as_ptr(), after.len(), after.capacity()),
            (before, 0, 8)
        );
    }
}
