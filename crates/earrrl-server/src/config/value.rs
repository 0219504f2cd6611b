//! Validation of the plain values of a configuration: numbers, durations, secrets, paths and costs.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use earrrl::{Cost, Limit, Mode, Nanos, Quota, Wait};
use toml::Spanned;

use super::bounds::MAX_FILE_LEN;
use super::file::Placed;
use super::listen::Protocol;
use super::problem::{LONGEST_SHOWN, Problems};
use super::suggest::nearest;

/// The prefix of a path to a credential of a systemd unit.
const CREDENTIALS: &str = "$CREDENTIALS_DIRECTORY/";

/// Validates that the field of a configuration is a whole number within `bounds`.
pub(super) fn number(
    name: &str,
    field: Option<&Spanned<u64>>,
    default: u64,
    bounds: RangeInclusive<u64>,
    problems: &mut Problems,
) -> u64 {
    let Some(field) = field else { return default };
    let value = *field.get_ref();
    if !bounds.contains(&value) {
        let (least, most) = bounds.into_inner();
        problems.add(
            field.span(),
            format!("{name}: {value} is not from {least} to {most}"),
        );
    }
    value
}

/// Validates a rule's capacity, which is a number of clients.
pub(super) fn capacity(field: Option<&Spanned<u64>>, problems: &mut Problems) -> Option<usize> {
    let field = field?;
    Some(number("capacity", Some(field), 1, 1..=10_000_000_000, problems) as usize)
}

/// Validates a duration of whole seconds within `bounds`.
pub(super) fn seconds(
    name: &str,
    field: Option<&Spanned<String>>,
    default: u32,
    bounds: RangeInclusive<u32>,
    problems: &mut Problems,
) -> u32 {
    let Some(field) = field else { return default };
    let parsed = earrrl::parse_duration(field.get_ref()).ok();
    let whole = parsed
        .filter(|duration| duration.subsec_nanos() == 0)
        .map(|d| d.as_secs());
    match whole
        .and_then(|secs| u32::try_from(secs).ok())
        .filter(|secs| bounds.contains(secs))
    {
        Some(secs) => secs,
        None => {
            let (least, most) = bounds.into_inner();
            let want = format!("whole seconds from {least}s to {most}s, as \"30s\" or \"5m\"");
            problems.expected(name, field, want);
            default
        }
    }
}

/// Validates a list of listeners, each of which is named by its protocol.
pub(super) fn listeners(
    name: &str,
    names: &[Spanned<String>],
    problems: &mut Problems,
) -> Vec<Protocol> {
    let mut listeners = Vec::with_capacity(names.len());
    for listener in names {
        match Protocol::ALL
            .into_iter()
            .find(|protocol| protocol.name() == listener.get_ref())
        {
            Some(protocol) => listeners.push(protocol),
            None => problems.expected(name, listener, "http, resp, grpc or admin"),
        }
    }
    listeners
}

/// Returns the choice that a field names, of a few that have names; `None` if the field is not set, or names none of
/// them.
pub(super) fn choice<T: Copy>(
    name: &str,
    field: &Placed<String>,
    choices: &[(&'static str, T)],
    problems: &mut Problems,
) -> Option<T> {
    let field = field.as_ref()?;
    let given = field.get_ref();
    let names = choices.iter().map(|(name, _)| *name);
    let found = choices.iter().find(|(name, _)| name == given);
    if found.is_none() {
        let known = names.clone().collect::<Vec<_>>().join(", ");
        let suggestion = nearest(given, names).map(|name| format!("; did you mean `{name}`?"));
        let shown: String = given.chars().take(LONGEST_SHOWN).collect();
        let problem = format!(
            "{name}: `{}` is none of {known}{}",
            shown.escape_debug(),
            suggestion.unwrap_or_default()
        );
        problems.add(field.span(), problem);
    }
    found.map(|(_, choice)| *choice)
}

/// Validates that a duration is above zero.
pub(super) fn duration(
    name: &str,
    field: &Spanned<String>,
    problems: &mut Problems,
) -> Option<Duration> {
    let parsed = earrrl::parse_duration(field.get_ref())
        .ok()
        .filter(|d| !d.is_zero());
    if parsed.is_none() {
        problems.expected(name, field, "a duration above 0, as \"250ms\" or \"2s\"");
    }
    parsed
}

/// Returns a secret and its place in the configuration. The secret is in one field, or in the file
/// that another field names.
pub(super) fn secret(
    name: &str,
    inline: Option<&Spanned<String>>,
    from_file: Option<&Spanned<String>>,
    problems: &mut Problems,
) -> Option<(Range<usize>, String)> {
    match (inline, from_file) {
        (None, None) => None,
        (Some(inline), None) => Some((inline.span(), inline.get_ref().clone())),
        (None, Some(path)) => match text_of(path.get_ref()) {
            Ok(text) => Some((path.span(), text.trim_end().to_owned())),
            Err(error) => {
                problems.add(path.span(), format!("{name}_file: {error}"));
                None
            }
        },
        (Some(_), Some(path)) => {
            problems.add(
                path.span(),
                format!("{name}_file: {name} is set already; want one"),
            );
            None
        }
    }
}

/// Returns the path of a file, in which a prefix `$CREDENTIALS_DIRECTORY/` is replaced by the
/// environment variable's value.
///
/// # Errors
/// Returns an error if the prefix is used and the process has no such environment variable.
pub(super) fn path_of(text: &str) -> io::Result<PathBuf> {
    let Some(name) = text.strip_prefix(CREDENTIALS) else {
        return Ok(text.into());
    };
    let none = || io::Error::other("CREDENTIALS_DIRECTORY is not set: LoadCredential= sets it");
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY").ok_or_else(none)?;
    Ok(Path::new(&folder).join(name))
}

/// Reads the text of a file that the configuration names.
///
/// # Errors
/// Returns the errors of [`path_of`] and [`read`].
pub(super) fn text_of(path: &str) -> io::Result<String> {
    read(&path_of(path)?)
}

/// Reads a file as UTF-8 text.
///
/// # Errors
/// Returns the errors of [`read_bytes`], and an error if the file is not UTF-8.
pub(super) fn read(path: &Path) -> io::Result<String> {
    String::from_utf8(read_bytes(path)?).map_err(|_| io::Error::other("expected UTF-8"))
}

/// Reads the bytes of a file of bounded size.
///
/// # Errors
/// Returns an error if the file cannot be read, or is larger than a configuration may be.
pub fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?
        .take(MAX_FILE_LEN + 1)
        .read_to_end(&mut bytes)?;
    if read as u64 > MAX_FILE_LEN {
        return Err(io::Error::other(format!(
            "longer than {MAX_FILE_LEN} bytes"
        )));
    }
    Ok(bytes)
}

/// Validates the cost of a request: a number with at most nine decimals.
pub(super) fn cost(name: &str, value: &toml::Value, problem: impl FnOnce(String)) -> Option<Cost> {
    let parsed = match value {
        // No cost is so large, and its decimal would be long.
        toml::Value::Float(float) if float.abs() > 1e18 => format!("{float:e}").parse::<Cost>(),
        // A float is written as the shortest decimal that stands for it, which is that of the file unless
        // the file has more digits than a float keeps.
        toml::Value::Integer(_) | toml::Value::Float(_) => value.to_string().parse::<Cost>(),
        other => {
            let shown: String = other.to_string().chars().take(80).collect();
            return refuse(problem, name, &format!("`{shown}`: expected a number ≥ 0"));
        }
    };
    parsed.map_or_else(|error| refuse(problem, name, &error), Some)
}

/// Checks that a request of a new client passes.
///
/// # Errors
/// Returns the costs that pass if this one never does.
pub fn check_passes(limit: &Limit, cost: Cost) -> Result<(), String> {
    let (_, decision) = limit.decide(None, Nanos::ZERO, cost, Mode::Peek);
    if decision.retry_after != Wait::Never {
        return Ok(());
    }
    let can = match Quota::of(limit).units {
        0 => "only costs below 1 can".to_owned(),
        most => format!("at most {most} can"),
    };
    Err(format!(
        "cost: {cost} can never pass under this limit; {can}"
    ))
}

fn refuse<T>(problem: impl FnOnce(String), name: &str, why: &dyn fmt::Display) -> Option<T> {
    problem(format!("{name}: {why}"));
    None
}
