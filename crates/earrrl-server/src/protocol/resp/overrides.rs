//! `EARRRL.OVERRIDE`: sets, shows, lists and removes the overrides that are set at run time.

use super::command::Command;
use super::question::wrong;
use super::reply::Writer;
use super::session::Refusal;
use crate::config::access::Scope;
use crate::service::override_table::{OverrideKey, RunTimeOverride};

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
