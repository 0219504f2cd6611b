//! `EARRRL.TOP rule n`: the clients with the highest rates.

use std::time::Duration;

use earrrl::{Name, Nanos, Wait};

use super::codec::Request;
use super::question::wrong;
use super::refusal::Refusal;
use super::reply::Writer;
use super::session::Session;
use crate::config::access::Scope;
use crate::service::reports::{MAX_TOP, SurveyedClient};

/// Answers `EARRRL.TOP rule n` with an array of maps.
pub(super) async fn top(
    session: &Session,
    request: Request<'_, '_>,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    session.may(Scope::Top)?;
    let (3, Some(name), Some(count)) = (request.len(), request.word(1), request.word(2)) else {
        return Err(Refusal::WordCount);
    };
    let number = std::str::from_utf8(count)
        .ok()
        .and_then(|count| count.parse().ok());
    let number = number.filter(|number| (1..=MAX_TOP).contains(number));
    let expected = || wrong("n", count, &format!("a whole number from 1 to {MAX_TOP}"));
    let count = number.ok_or_else(expected)?;
    let name = String::from_utf8_lossy(name);
    session.access.permit_rule(&name)?;
    let report = session.server.service.report(&name).await?;
    let clients = &report.clients[..count.min(report.clients.len())];
    reply.array(clients.len());
    clients
        .iter()
        .for_each(|client| write_client(client, reply));
    Ok(())
}

fn write_client(client: &SurveyedClient, reply: &mut Writer<'_>) {
    let SurveyedClient { figures, name } = client;
    reply.map(13);
    reply.bulk(b"key");
    match name {
        Some(name) => reply.bulk(&name.name),
        None => reply.nil(),
    }
    reply.bulk(b"fingerprint");
    reply.bulk(format!("{:010x}", figures.fingerprint).as_bytes());
    reply.bulk(b"rate");
    match figures.rate {
        Some(rate) => reply.double(rate),
        None => reply.nil(),
    }
    reply.bulk(b"usage");
    reply.double(figures.usage);
    reply.bulk(b"limit");
    reply.double(figures.limit);
    reply.bulk(b"remaining");
    reply.count(figures.remaining);
    reply.bulk(b"retry_after");
    match figures.retry_after {
        Wait::For(wait) => reply.seconds(wait),
        Wait::Never => reply.nil(),
    }
    reply.bulk(b"reset_after");
    reply.seconds(figures.reset_after);
    write_counts(name.as_ref(), reply);
}

/// Writes the counts and times that are stored with a client's name.
fn write_counts(name: Option<&Name>, reply: &mut Writer<'_>) {
    let counts = name
        .map(|name| (name.allowed, name.denied))
        .unwrap_or_default();
    reply.bulk(b"allowed");
    reply.count(counts.0);
    reply.bulk(b"denied");
    reply.count(counts.1);
    for (field, at) in [
        ("first_seen", name.map(|name| name.first_seen)),
        ("first_denied", name.and_then(|name| name.first_denied)),
        ("last_denied", name.and_then(|name| name.last_denied)),
    ] {
        reply.bulk(field.as_bytes());
        write_instant(at, reply);
    }
}

/// Writes an instant as seconds since the Unix epoch.
fn write_instant(at: Option<Nanos>, reply: &mut Writer<'_>) {
    match at {
        Some(at) => reply.seconds(Duration::from_nanos(at.get())),
        None => reply.nil(),
    }
}
