//! The commands about rules and their clients that are no questions: `EARRRL.CHECKATTR`, reservations, refunds, resets,
//! lists, and overrides that are set at run time. Each parses its words, checks the client's token, asks the service
//! and writes the reply.

use std::time::Duration;

use earrrl::{HoldId, HoldTerms, MAX_CHARGES, Mode, Nanos};
use smallvec::SmallVec;

use super::command::Command;
use super::question::{cost, is_word, wrong};
use super::reply::{Writer, write_committed, write_matching, write_reserved};
use super::session::Refusal;
use crate::config::access::Scope;
use crate::service::ask::Ask;
use crate::service::attributes::{Attributes, MAX_ATTRIBUTES};
use crate::service::error::AskError;
use crate::service::override_table::{OverrideKey, RunTimeOverride};
use crate::service::reports::{MAX_TOP, SurveyedClient};
use crate::service::reserve::{ActualCosts, time_to_live, with_id};
use crate::service::rule::ActiveRule;

impl<'c> Command<'c> {
    /// Answers `EARRRL.CHECKATTR name value [name value …]`: decides under every rule that matches
    /// these attributes, as `POST /v1/check` does with `attributes`.
    pub(super) async fn check_attributes(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Check)?;
        self.session.access.permit_all_rules()?;
        let (words, []) = self.arguments.as_chunks() else {
            return Err(Refusal::WordCount);
        };
        if words.is_empty() {
            return Err(Refusal::WordCount);
        }
        if words.len() > MAX_ATTRIBUTES {
            let count = words.len();
            let text = format!("attributes: {count}; at most {MAX_ATTRIBUTES}");
            return Err(Refusal::Error(text));
        }
        let pair = |[name, value]: &[&'c [u8]; 2]| match str::from_utf8(name) {
            Ok(name) => Ok((name.into(), (*value).into())),
            Err(_) => Err(Refusal::Error(
                "attributes: expected a name in UTF-8".to_owned(),
            )),
        };
        let pairs = words.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        let attributes = Attributes::named(pairs, &self.rules.reading)?;
        self.rules.log_unread(attributes.names());
        let manner = Mode::Check.into();
        let answer = self.service().ask_matching(self.rules, &attributes, manner);
        write_matching(&answer.await.judged()?, &mut self.reply);
        Ok(())
    }

    /// Answers `EARRRL.REFUND rule key cost [T0 seconds]`.
    pub(super) async fn refund(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Refund)?;
        let [name, key, amount, rest @ ..] = self.arguments else {
            return Err(Refusal::WordCount);
        };
        let charged_at = match rest {
            [] => None,
            [word, time] if is_word(word, "T0") => Some(instant(time)?),
            _ => return Err(Refusal::WordCount),
        };
        let ask = Ask::new(self.rule(name)?, key, Some(cost(amount)?));
        self.service().refund(&ask, charged_at).await?;
        self.reply.simple("OK");
        Ok(())
    }

    /// Answers `EARRRL.RESET rule key`: deletes the stored state of this client under the rule.
    pub(super) async fn reset_client(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Reset)?;
        let [name, key] = self.arguments else {
            return Err(Refusal::WordCount);
        };
        let ask = Ask::new(self.rule(name)?, key, None);
        self.service().reset(&ask).await?;
        self.reply.simple("OK");
        Ok(())
    }

    /// Answers `DEL key [key …]` with the number of keys of `CL.THROTTLE` that it deleted.
    pub(super) async fn del(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Reset)?;
        self.session.access.permit_all_rules()?;
        if self.arguments.is_empty() {
            return Err(Refusal::WordCount);
        }
        let mut deleted = 0;
        for key in self.arguments {
            let is_deleted = self.service().engine().delete_throttle(key).await;
            deleted += i64::from(is_deleted.map_err(AskError::from)?);
        }
        self.reply.integer(deleted);
        Ok(())
    }

    /// Answers `EARRRL.RULES` with the name and text of each rule that the client's token permits.
    pub(super) fn list_rules(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Peek)?;
        let access = &self.session.access;
        let is_permitted = |rule: &&ActiveRule| access.permit_rule(&rule.name).is_ok();
        let permitted: Vec<_> = self.rules.iter().filter(is_permitted).collect();
        self.reply.map(permitted.len());
        for rule in permitted {
            let text = rule.own.rule.to_string();
            self.reply.entry(&rule.name).bulk(text.as_bytes());
        }
        Ok(())
    }

    /// Answers `EARRRL.RESERVE rule key [COST c] [TTL s] [ATMOST] [ID id] [AND rule key [COST c] …]`.
    /// The terms hold for the whole reservation, after whichever charge they are.
    pub(super) async fn reserve(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Check)?;
        let (asks, terms) = self.parse_reservation()?;
        let reserved = self.service().reserve(&asks, terms, false).await?;
        write_reserved(&reserved, asks.len() > 1, &mut self.reply);
        Ok(())
    }

    fn parse_reservation(&self) -> Result<(SmallVec<[Ask<'c>; 1]>, HoldTerms), Refusal> {
        let mut words = self.arguments.iter().copied();
        let mut asks = SmallVec::new();
        let mut terms = HoldTerms::default();
        let mut has_ttl = false;
        let mut is_at_most = false;
        loop {
            let (Some(name), Some(key)) = (words.next(), words.next()) else {
                return Err(Refusal::WordCount);
            };
            let rule = self.rule(name)?;
            let mut estimate = None;
            let mut goes_on = false;
            while let Some(word) = words.next() {
                let mut value = || words.next().ok_or(Refusal::WordCount);
                if is_word(word, "COST") && estimate.is_none() {
                    estimate = Some(cost(value()?)?);
                } else if is_word(word, "TTL") && !has_ttl {
                    (terms, has_ttl) = (terms.ttl(seconds(value()?)?), true);
                } else if is_word(word, "ATMOST") && !is_at_most {
                    (terms, is_at_most) = (terms.at_most(), true);
                } else if is_word(word, "ID") && terms.id.is_none() {
                    terms = with_id(terms, &String::from_utf8_lossy(value()?))?;
                } else if is_word(word, "AND") && asks.len() + 1 < MAX_CHARGES {
                    goes_on = true;
                    break;
                } else {
                    let expected = "expected COST, TTL, ATMOST, ID, AND or nothing more";
                    return Err(Refusal::Error(expected.to_owned()));
                }
            }
            asks.push(Ask::new(rule, key, estimate));
            if !goes_on {
                return Ok((asks, terms));
            }
        }
    }

    /// Answers `EARRRL.COMMIT id [COST c | RULE rule COST c …]`. Without a cost, the estimates become the
    /// actual costs.
    pub(super) async fn commit(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Check)?;
        let [id, costs @ ..] = self.arguments else {
            return Err(Refusal::WordCount);
        };
        let costs = actual_costs(costs)?;
        let committed = self.service().commit(self.rules, parse_id(id)?, &costs);
        let (answer, repeated) = committed.await?;
        write_committed(&answer, repeated, &mut self.reply);
        Ok(())
    }

    /// Answers `EARRRL.RENEW id [TTL s]` with `OK`. Without a time, the default of reservations holds.
    pub(super) async fn renew(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Check)?;
        let (id, ttl) = match self.arguments {
            [id] => (id, HoldTerms::default().ttl),
            [id, word, text] if is_word(word, "TTL") => (id, seconds(text)?),
            _ => return Err(Refusal::WordCount),
        };
        self.service().renew(parse_id(id)?, ttl).await?;
        self.reply.simple("OK");
        Ok(())
    }

    /// Answers `EARRRL.TOP rule n` with an array of maps.
    pub(super) async fn top(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Top)?;
        let [name, count] = self.arguments else {
            return Err(Refusal::WordCount);
        };
        let number = str::from_utf8(count)
            .ok()
            .and_then(|count| count.parse().ok());
        let number = number.filter(|number| (1..=MAX_TOP).contains(number));
        let expected = || wrong("n", count, &format!("a whole number from 1 to {MAX_TOP}"));
        let count = number.ok_or_else(expected)?;
        let name = String::from_utf8_lossy(name);
        self.session.access.permit_rule(&name)?;
        let report = self.session.server.service.report(&name).await?;
        let clients = &report.clients[..count.min(report.clients.len())];
        self.reply.array(clients.len());
        for client in clients {
            write_client(client, &mut self.reply);
        }
        Ok(())
    }
}

/// Parses a time in seconds since the Unix epoch. The parser for costs serves here too: it is exact
/// to 1e-9, which for seconds is one nanosecond.
fn instant(text: &[u8]) -> Result<Nanos, Refusal> {
    let seconds = cost(text).ok();
    let nanos = seconds.and_then(|seconds| u64::try_from(seconds.billionths()).ok());
    let expected = "a number of seconds since the Unix epoch, with at most nine decimals";
    nanos
        .map(Nanos::new)
        .ok_or_else(|| wrong("t0", text, expected))
}

/// Parses a number of seconds. The parser for costs serves here too: it is exact to 1e-9.
fn seconds(text: &[u8]) -> Result<Duration, Refusal> {
    let text = String::from_utf8_lossy(text);
    Ok(time_to_live(&text, text.parse().ok())?)
}

fn parse_id(word: &[u8]) -> Result<HoldId, Refusal> {
    let text = str::from_utf8(word).unwrap_or_default();
    Ok(text.parse().map_err(AskError::from)?)
}

/// Parses `[COST c | RULE rule COST c …]`.
fn actual_costs<'a>(words: &[&'a [u8]]) -> Result<ActualCosts<'a>, Refusal> {
    let expected = || Refusal::Error("expected COST, RULE or nothing more".to_owned());
    let mut words = words.iter().copied();
    let mut all = None;
    let mut by_rule = Vec::new();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(Refusal::WordCount);
        if is_word(word, "COST") && all.is_none() && by_rule.is_empty() {
            all = Some(cost(value()?)?);
        } else if is_word(word, "RULE") && all.is_none() && by_rule.len() < MAX_CHARGES {
            let name = value()?;
            let name = str::from_utf8(name).map_err(|_| AskError::unknown_rule(name))?;
            if !is_word(value()?, "COST") {
                return Err(expected());
            }
            by_rule.push((name, cost(value()?)?));
        } else {
            return Err(expected());
        }
    }
    Ok(if by_rule.is_empty() {
        ActualCosts::All(all)
    } else {
        ActualCosts::ByRule(by_rule)
    })
}

fn write_client(client: &SurveyedClient, reply: &mut Writer<'_>) {
    let SurveyedClient { figures, name } = client;
    let name = name.as_ref();
    let since_epoch =
        |reply: &mut Writer<'_>, at: Nanos| reply.seconds(Duration::from_nanos(at.get()));
    reply.map(13);
    let key = name.map(|name| &*name.name);
    reply.entry("key").optional(key, Writer::bulk);
    let fingerprint = format!("{:010x}", figures.fingerprint);
    reply.entry("fingerprint").bulk(fingerprint.as_bytes());
    reply.entry("rate").optional(figures.rate, Writer::double);
    reply.entry("usage").double(figures.usage);
    reply.entry("limit").double(figures.limit);
    reply.entry("remaining").count(figures.remaining);
    let wait = figures.retry_after.duration();
    reply.entry("retry_after").optional(wait, Writer::seconds);
    reply.entry("reset_after").seconds(figures.reset_after);
    // The counts and the times are stored with the client's name.
    let (allowed, denied) = name.map_or((0, 0), |name| (name.allowed, name.denied));
    reply.entry("allowed").count(allowed);
    reply.entry("denied").count(denied);
    for (field, at) in [
        ("first_seen", name.map(|name| name.first_seen)),
        ("first_denied", name.and_then(|name| name.first_denied)),
        ("last_denied", name.and_then(|name| name.last_denied)),
    ] {
        reply.entry(field).optional(at, since_epoch);
    }
}

/// The greatest number of overrides that a reply lists; the next command continues behind the last.
const MAX_LISTED: usize = 1000;

impl Command<'_> {
    /// Answers `EARRRL.OVERRIDE` with one of `SET rule limit [EXPIRES s] KEY part [part …]`, `GET rule part [part …]`,
    /// `DEL rule part [part …]` and `LIST rule [AFTER part [part …]]`.
    pub(super) async fn change_override(&mut self) -> Result<(), Refusal> {
        self.session.may(Scope::Overrides)?;
        let words = self.arguments.iter().map(|word| str::from_utf8(word));
        let words = words.collect::<Result<Vec<_>, _>>();
        let words =
            words.map_err(|_| Refusal::Error("EARRRL.OVERRIDE: expected UTF-8".to_owned()))?;
        let [verb, rule, rest @ ..] = &words[..] else {
            return Err(Refusal::WordCount);
        };
        self.session.access.permit_rule(rule)?;
        match &*verb.to_ascii_uppercase() {
            "SET" => {
                self.set_override(rule, rest).await?;
                self.reply.simple("OK");
            }
            "GET" => {
                let found = self.service().override_of(&client(rule, rest)?);
                self.reply
                    .optional(found, |reply, found| write(&found, reply));
            }
            "DEL" => {
                let removed = self.service().remove_override(client(rule, rest)?).await?;
                self.reply.integer(removed.into());
            }
            "LIST" => {
                let after = match rest {
                    [] => ((*rule).to_owned(), Vec::new()),
                    [word, parts @ ..] if word.eq_ignore_ascii_case("AFTER") => {
                        client(rule, parts)?
                    }
                    _ => return Err(Refusal::WordCount),
                };
                let of_rule = |set: &RunTimeOverride| set.rule == *rule;
                let found = self.service().overrides(Some(&after), MAX_LISTED, of_rule);
                self.reply.array(found.len());
                for one in &found {
                    write(one, &mut self.reply);
                }
            }
            _ => {
                let expected = "EARRRL.OVERRIDE: expected SET, GET, DEL or LIST";
                return Err(Refusal::Error(expected.to_owned()));
            }
        }
        Ok(())
    }

    /// Sets the override of `limit [EXPIRES s] KEY part [part …]`.
    async fn set_override(&self, rule: &str, words: &[&str]) -> Result<(), Refusal> {
        let (limit, expires, rest) = match words {
            [limit, word, seconds, rest @ ..] if word.eq_ignore_ascii_case("EXPIRES") => {
                let expected = "whole seconds since the Unix epoch";
                let number = seconds.parse();
                let number = number.map_err(|_| wrong("expires", seconds.as_bytes(), expected))?;
                (limit, Some(number), rest)
            }
            [limit, rest @ ..] => (limit, None, rest),
            [] => return Err(Refusal::WordCount),
        };
        let [word, parts @ ..] = rest else {
            return Err(Refusal::WordCount);
        };
        if !word.eq_ignore_ascii_case("KEY") {
            let expected = "EARRRL.OVERRIDE SET: expected EXPIRES or KEY after the limit";
            return Err(Refusal::Error(expected.to_owned()));
        }
        let id = client(rule, parts)?;
        let limit = (*limit).to_owned();
        let access = &self.session.access;
        self.service()
            .set_override(id, limit, expires, access)
            .await?;
        Ok(())
    }
}

fn client(rule: &str, parts: &[&str]) -> Result<OverrideKey, Refusal> {
    if parts.is_empty() {
        return Err(Refusal::WordCount);
    }
    let parts = parts.iter().map(|part| (*part).to_owned());
    Ok((rule.to_owned(), parts.collect()))
}

fn write((set, is_active): &(RunTimeOverride, bool), reply: &mut Writer<'_>) {
    reply.map(7);
    reply.entry("rule").bulk(set.rule.as_bytes());
    reply.entry("key").array(set.key.len());
    set.key.iter().for_each(|part| reply.bulk(part.as_bytes()));
    reply.entry("limit").bulk(set.limit.as_bytes());
    reply.entry("expires").optional(set.expires, Writer::count);
    let by = set.by.as_deref().map(str::as_bytes);
    reply.entry("by").optional(by, Writer::bulk);
    reply.entry("at").count(set.at);
    reply.entry("active").integer((*is_active).into());
}
