//! `EARRRL.OVERRIDE`: sets, shows, lists and removes the overrides that are set at run time.

use super::codec::Request;
use super::question::wrong;
use super::reply::Writer;
use super::session::{Refusal, Session};
use crate::config::access::Scope;
use crate::service::override_table::{OverrideKey, RunTimeOverride};

/// The greatest number of overrides that a reply lists; the next command continues behind the last.
const MAX_LISTED: usize = 1000;

/// Answers `EARRRL.OVERRIDE` with one of `SET rule limit [EXPIRES s] KEY part [part …]`, `GET rule part [part …]`,
/// `DEL rule part [part …]` and `LIST rule [AFTER part [part …]]`.
pub(super) async fn answer(
    session: &Session,
    request: Request<'_, '_>,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Scope::Overrides)?;
    let words: Result<Vec<&str>, _> = request.words().skip(1).map(str::from_utf8).collect();
    let words = words.map_err(|_| Refusal::Error("EARRRL.OVERRIDE: expected UTF-8".to_owned()))?;
    let [verb, rule, rest @ ..] = &words[..] else {
        return Err(Refusal::WordCount);
    };
    session.access.permit_rule(rule)?;
    let service = &session.server.service;
    match &*verb.to_ascii_uppercase() {
        "SET" => {
            set(session, rule, rest).await?;
            reply.simple("OK");
        }
        "GET" => match service.override_of(&client(rule, rest)?) {
            Some(found) => write(&found, reply),
            None => reply.nil(),
        },
        "DEL" => {
            let removed = service.remove_override(client(rule, rest)?).await?;
            reply.integer(removed.into());
        }
        "LIST" => {
            let after = match rest {
                [] => ((*rule).to_owned(), Vec::new()),
                [word, parts @ ..] if word.eq_ignore_ascii_case("AFTER") => client(rule, parts)?,
                _ => return Err(Refusal::WordCount),
            };
            let found = service.overrides(Some(&after), MAX_LISTED, |set| set.rule == *rule);
            reply.array(found.len());
            found.iter().for_each(|one| write(one, reply));
        }
        _ => {
            let expected = "EARRRL.OVERRIDE: expected SET, GET, DEL or LIST";
            return Err(Refusal::Error(expected.to_owned()));
        }
    }
    Ok(())
}

/// Sets the override of `limit [EXPIRES s] KEY part [part …]`.
async fn set(session: &Session, rule: &str, words: &[&str]) -> Result<(), Refusal> {
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
    let service = &session.server.service;
    service
        .set_override(id, limit, expires, &session.access)
        .await?;
    Ok(())
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
    reply.bulk(b"rule");
    reply.bulk(set.rule.as_bytes());
    reply.bulk(b"key");
    reply.array(set.key.len());
    set.key.iter().for_each(|part| reply.bulk(part.as_bytes()));
    reply.bulk(b"limit");
    reply.bulk(set.limit.as_bytes());
    reply.bulk(b"expires");
    match set.expires {
        Some(expires) => reply.count(expires),
        None => reply.nil(),
    }
    reply.bulk(b"by");
    match &set.by {
        Some(by) => reply.bulk(by.as_bytes()),
        None => reply.nil(),
    }
    reply.bulk(b"at");
    reply.count(set.at);
    reply.bulk(b"active");
    reply.integer((*is_active).into());
}
