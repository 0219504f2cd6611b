//! Log formats: a line's bytes in, a [`Record`] out.
//!
//! Only what is asked for is looked for: a record finds its fields when they are read.

mod common;
mod csv;
mod detect;
mod json;
mod sshd;

use std::borrow::Cow;
use std::time::SystemTime;

pub(crate) use detect::detect;

use super::skips::Skip;

/// What a log is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Apache's and nginx's usual one: client, user, time, request, status, size, referrer, agent.
    Combined,
    /// As combined, without referrer and agent.
    Common,
    /// As combined, behind the virtual host.
    Vhost,
    /// An object a line, as nginx, Caddy and most collectors write.
    Json,
    /// A header `time,key[,cost]`, then a line a request.
    Csv,
    /// The ssh daemon's lines in a syslog.
    Sshd,
}

impl Format {
    /// Every format.
    pub(crate) const ALL: [Self; 6] =
        [Self::Combined, Self::Common, Self::Vhost, Self::Json, Self::Csv, Self::Sshd];

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Common => "common",
            Self::Vhost => "vhost",
            Self::Json => "json",
            Self::Csv => "csv",
            Self::Sshd => "sshd",
        }
    }

    /// The names of its fields; none where each log has its own.
    pub(crate) fn fields(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Combined | Self::Common | Self::Vhost => Some(&common::FIELDS),
            Self::Sshd => Some(&sshd::FIELDS),
            Self::Json | Self::Csv => None,
        }
    }
}

/// A part of a request that a key or a cost is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Field {
    /// The client's address.
    Client,
    /// The user's name.
    User,
    /// The path, without the query.
    Path,
    /// Any other, by the name that the format gives it.
    Named(String),
}

impl Field {
    /// The field of this name.
    pub(crate) fn new(name: &str) -> Self {
        match name {
            "client" => Self::Client,
            "user" => Self::User,
            "path" => Self::Path,
            _ => Self::Named(name.to_owned()),
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Client => "client",
            Self::User => "user",
            Self::Path => "path",
            Self::Named(name) => name,
        }
    }
}

/// Where to look for what the format does not settle.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hints {
    /// The field with the time, instead of the usual ones.
    pub(crate) time_field: Option<String>,
    /// The field with the client, instead of the usual ones.
    pub(crate) key_field: Option<String>,
    /// The year of the first syslog line.
    pub(crate) year: Option<u32>,
    /// Whether lines must not be shown.
    pub(crate) private: bool,
}

/// Reads the lines of one format.
pub(crate) enum Parser {
    /// Combined, common and vhost.
    Common(common::Parser),
    /// JSON lines.
    Json(json::Parser),
    /// CSV.
    Csv(csv::Parser),
    /// Syslog lines of the ssh daemon.
    Sshd(sshd::Parser),
}

impl Parser {
    /// A parser for a file that was `modified` last at that time.
    pub(crate) fn new(format: Format, hints: &Hints, modified: SystemTime) -> Self {
        match format {
            Format::Combined | Format::Common => Self::Common(common::Parser::new(false)),
            Format::Vhost => Self::Common(common::Parser::new(true)),
            Format::Json => Self::Json(json::Parser::new(hints)),
            Format::Csv => Self::Csv(csv::Parser::new(hints)),
            Format::Sshd => Self::Sshd(sshd::Parser::new(hints.year, modified)),
        }
    }

    /// The request on a line; `None` where the line is a header.
    ///
    /// # Errors
    /// Why the line is none.
    #[inline]
    pub(crate) fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Option<Record<'a>>, Skip> {
        match self {
            Self::Common(parser) => parser.parse(line).map(|r| Some(Record::Common(r))),
            Self::Json(parser) => parser.parse(line).map(|r| Some(Record::Json(r))),
            Self::Csv(parser) => Ok(parser.parse(line)?.map(Record::Csv)),
            Self::Sshd(parser) => parser.parse(line).map(|r| Some(Record::Sshd(r))),
        }
    }
}

/// One request.
pub(crate) enum Record<'a> {
    /// Of a web server's log.
    Common(common::Record<'a>),
    /// Of JSON lines.
    Json(json::Record<'a>),
    /// Of CSV.
    Csv(csv::Record<'a>),
    /// Of the ssh daemon.
    Sshd(sshd::Record<'a>),
}

impl<'a> Record<'a> {
    /// When it was, in nanoseconds since the epoch.
    #[inline]
    pub(crate) fn time(&self) -> u64 {
        match self {
            Self::Common(record) => record.time,
            Self::Json(record) => record.time,
            Self::Csv(record) => record.time,
            Self::Sshd(record) => record.time,
        }
    }

    /// What it says in a field; `None` where that is missing or left empty by a `-`.
    #[inline]
    pub(crate) fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::Common(record) => record.get(field).map(Cow::Borrowed),
            Self::Json(record) => record.get(field),
            Self::Csv(record) => record.get(field),
            Self::Sshd(record) => record.get(field).map(Cow::Borrowed),
        }
    }

    /// The cost that the format itself has a place for.
    pub(crate) fn cost(&self) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::Csv(record) => record.cost(),
            _ => None,
        }
    }

    /// Whether a client is an address, to be cut to its prefix.
    #[inline]
    pub(crate) fn has_addresses(&self) -> bool {
        !matches!(self, Self::Csv(_))
    }
}

/// A path without its query.
fn without_query(target: &[u8]) -> &[u8] {
    memchr::memchr(b'?', target).map_or(target, |at| &target[..at])
}

/// The target in a request line, `GET /path?query HTTP/1.1`.
fn target(request: &[u8]) -> Option<&[u8]> {
    let mut words = request.split(|&b| b == b' ').filter(|word| !word.is_empty());
    words.next()?;
    words.next()
}
