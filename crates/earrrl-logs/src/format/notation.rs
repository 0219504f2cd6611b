//! Conversion of `--log-format` to a pattern. The format is in nginx's notation (`$remote_addr
//! [$time_local] "$request"`) or in Apache's (`%h %l %u %t "%r" %>s`). It may also be a whole
//! `log_format` or `LogFormat` statement of a configuration.

use std::borrow::Cow;

use super::pattern::LinePattern;

/// A part of the notation.
enum Piece {
    /// Text that occurs on every line as it is.
    Literal(String),
    /// The name of a field, and the regular expression for its value. Another expression is
    /// used if the text beside the field determines where the value ends.
    Field(String, Cow<'static, str>),
}

/// Regular expressions for a field's content: a word, a time, a list of addresses, or any text.
const WORD: &str = r"\S*?";
const TIME: &str = r"\S+?(?: [-+]\d{4})?";
const LIST: &str = r"\S*?(?:, ?\S+?)*?";
const TEXT: &str = ".*?";

/// Converts a notation to a pattern.
///
/// ```
/// use earrrl_logs::format::notation::pattern;
///
/// let nginx = pattern(r#"$remote_addr [$time_local] "$request" $status"#)?;
/// assert!(nginx.fields().contains(&"status"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns a description of the problem, in one line, if the notation is invalid.
pub fn pattern(notation: &str) -> Result<LinePattern, String> {
    let notation = &*statement(notation)?;
    let (pieces, time_format) = match notation.contains('$') {
        true => (nginx(notation)?, None),
        false => apache(notation)?,
    };
    let names: Vec<&str> = pieces.iter().filter_map(Piece::name).collect();
    if !names.contains(&"time") {
        return Err("expected a field with the time, such as $time_local, $msec or %t".into());
    }
    let pattern = LinePattern::new(&expression(&pieces))?;
    Ok(time_format.map_or(pattern.clone(), |format| pattern.with_time_format(&format)))
}

/// Returns the notation in nginx's statement `log_format NAME [escape=…] '…' '…';` or in Apache's
/// statement `LogFormat "…" NAME`. A text that is not such a statement is returned unchanged.
fn statement(text: &str) -> Result<Cow<'_, str>, String> {
    let text = text.trim();
    let behind = |name: &str| {
        let rest = text
            .get(..name.len())
            .filter(|start| start.eq_ignore_ascii_case(name));
        rest.map(|_| &text[name.len()..])
            .filter(|rest| rest.starts_with(char::is_whitespace))
    };
    if let Some(rest) = behind("log_format") {
        let words = words(rest)?;
        let parts = words
            .iter()
            .skip(1)
            .skip_while(|word| word.starts_with("escape="));
        let notation: String = parts.map(String::as_str).collect();
        return match notation.is_empty() {
            true => Err("expected log_format NAME '…';".into()),
            false => Ok(notation.into()),
        };
    }
    match behind("LogFormat") {
        None => Ok(text.into()),
        Some(rest) => {
            let first = words(rest)?.into_iter().next();
            first
                .map(Cow::Owned)
                .ok_or_else(|| "expected LogFormat \"…\"".into())
        }
    }
}

/// Returns the words of a statement up to its semicolon, without the quotes around them.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next().filter(|&first| first != ';') {
        let quote = matches!(first, '"' | '\'').then_some(first);
        let mut word = String::new();
        let mut letters = rest.char_indices().skip(usize::from(quote.is_some()));
        let end = loop {
            match letters.next() {
                None if quote.is_some() => return Err(format!("expected a closing {first}")),
                None => break rest.len(),
                Some((at, letter)) if Some(letter) == quote => break at + 1,
                Some((at, letter))
                    if quote.is_none() && (letter == ';' || letter.is_whitespace()) =>
                {
                    break at;
                }
                Some((_, '\\')) => match letters.next() {
                    Some((_, 't')) => word.push('\t'),
                    Some((_, other)) => word.push(other),
                    None => {}
                },
                Some((_, letter)) => word.push(letter),
            }
        };
        words.push(word);
        rest = rest[end..].trim_start();
    }
    Ok(words)
}

impl Piece {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::Field(name, _) => Some(name),
        }
    }
}

/// Returns the regular expression for the parts of a notation. If a field occurs several times,
/// only its first occurrence is captured.
fn expression(pieces: &[Piece]) -> String {
    let mut expression = String::from("^");
    let mut seen: Vec<&str> = Vec::new();
    for (place, piece) in pieces.iter().enumerate() {
        let (name, content) = match piece {
            Piece::Literal(text) => {
                expression += &regex::escape(text);
                continue;
            }
            Piece::Field(name, content) => (name.as_str(), content.as_ref()),
        };
        let before = place.checked_sub(1).map(|p| &pieces[p]);
        let after = pieces.get(place + 1);
        let content = match (before, after) {
            // Servers escape quotes inside a quoted value, so a client cannot end its field early.
            (Some(Piece::Literal(text)), Some(Piece::Literal(next)))
                if text.ends_with('"') && next.starts_with('"') =>
            {
                r#"(?:[^"\\]|\\.)*"#
            }
            // A user before the time may contain a bracket, which does not start the time.
            (_, Some(Piece::Literal(next))) if next.starts_with(']') && name == "time" => {
                r"[^\[\]]*"
            }
            (_, Some(Piece::Literal(next))) if next.starts_with(']') => r"[^\]]*",
            (_, None) => ".*",
            _ => content,
        };
        if seen.contains(&name) {
            expression += &format!("(?:{content})");
        } else {
            expression += &format!("(?<{name}>{content})");
            seen.push(name);
        }
    }
    expression
}

fn nginx(notation: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = notation;
    while let Some(at) = rest.find('$') {
        literal(&mut pieces, &rest[..at]);
        let variable = &rest[at + 1..];
        let braces = variable.starts_with('{');
        let variable = variable.strip_prefix('{').unwrap_or(variable);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = variable.find(|c| !is_name(c)).unwrap_or(variable.len());
        let name = &variable[..end];
        rest = &variable[end..];
        if braces {
            rest = rest
                .strip_prefix('}')
                .ok_or(format!("expected a }} behind ${{{name}"))?;
        }
        if name.is_empty() {
            return Err("expected a variable's name behind $".into());
        }
        pieces.push(field(name_of(name)));
    }
    literal(&mut pieces, rest);
    Ok(pieces)
}

/// Returns the name of the field that a variable of nginx contains.
fn name_of(variable: &str) -> &str {
    match variable {
        "remote_addr" => "client",
        "remote_user" => "user",
        "time_local" | "time_iso8601" | "msec" => "time",
        "request_uri" | "uri" => "path",
        "request_method" => "method",
        "body_bytes_sent" | "bytes_sent" => "bytes",
        "http_referer" => "referer",
        "http_user_agent" => "agent",
        "http_x_forwarded_for" | "proxy_add_x_forwarded_for" => "forwarded_for",
        "http_host" | "server_name" => "host",
        other => other,
    }
}

/// Returns a field with the content that fields of this name have.
fn field(name: &str) -> Piece {
    let content = match name {
        "user" | "request" | "referer" | "agent" => TEXT,
        "time" => TIME,
        "forwarded_for" => LIST,
        _ => WORD,
    };
    Piece::Field(group(name), content.into())
}

fn apache(notation: &str) -> Result<(Vec<Piece>, Option<String>), String> {
    let mut pieces = Vec::new();
    let mut time_format = None;
    let mut rest = notation;
    while let Some(at) = rest.find('%') {
        literal(&mut pieces, &rest[..at]);
        rest = rest[at + 1..]
            .trim_start_matches(|c: char| matches!(c, '<' | '>' | '!' | ',') || c.is_ascii_digit());
        let argument = match rest.strip_prefix('{') {
            None => None,
            Some(inner) => {
                let end = inner.find('}').ok_or("expected a } behind %{")?;
                rest = &inner[end + 1..];
                Some(&inner[..end])
            }
        };
        let directive = rest.chars().next().ok_or("expected a letter behind %")?;
        rest = &rest[directive.len_utf8()..];
        match (directive, argument) {
            ('%', None) => literal(&mut pieces, "%"),
            ('t', None) => {
                literal(&mut pieces, "[");
                pieces.push(field("time"));
                literal(&mut pieces, "]");
            }
            ('t', Some(format)) => {
                let format = format
                    .trim_start_matches("begin:")
                    .trim_start_matches("end:");
                let epoch = matches!(format, "sec" | "msec" | "usec");
                time_format = (!epoch).then(|| format.to_owned());
                let blanks = format.matches([' ']).count();
                let content = format!(r"\S+(?: \S+){{{blanks}}}");
                pieces.push(Piece::Field("time".into(), content.into()));
            }
            (directive, argument) => pieces.push(apache_field(directive, argument)?),
        }
    }
    literal(&mut pieces, rest);
    Ok((pieces, time_format))
}

fn apache_field(directive: char, argument: Option<&str>) -> Result<Piece, String> {
    let name = match (directive, argument) {
        ('h' | 'a', None) => "client",
        ('l', _) => "ident",
        ('u', _) => "user",
        ('r', _) => "request",
        ('s', _) => "status",
        ('b' | 'B' | 'O', _) => "bytes",
        ('U', _) => "path",
        ('q', _) => "query",
        ('m', _) => "method",
        ('H', _) => "protocol",
        ('v' | 'V', _) => "host",
        ('i', Some(header)) => {
            let header = group(header);
            let variable = format!("http_{header}");
            return Ok(match name_of(&variable) {
                name if name == variable => Piece::Field(header, TEXT.into()),
                name => field(name),
            });
        }
        ('a' | 'o' | 'e' | 'n' | 'C' | 'x' | 'p' | 'P' | 'T' | '^', Some(argument)) => {
            return Ok(Piece::Field(group(argument), WORD.into()));
        }
        (letter, None) if letter.is_ascii_alphabetic() => {
            return Ok(Piece::Field(format!("field_{letter}"), WORD.into()));
        }
        _ => return Err(format!("unknown directive %{directive}")),
    };
    Ok(field(name))
}

/// Appends literal text; adjacent literal texts are joined into one part.
fn literal(pieces: &mut Vec<Piece>, text: &str) {
    match pieces.last_mut() {
        Some(Piece::Literal(last)) => last.push_str(text),
        _ if text.is_empty() => {}
        _ => pieces.push(Piece::Literal(text.to_owned())),
    }
}

/// Converts a field's name to a name for a group: `X-Request-Id` to `x_request_id`.
fn group(name: &str) -> String {
    let letter = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '_'
        }
    };
    let name: String = name.chars().map(letter).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("_{name}")
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::envelope::Message;
    use crate::format::{Field, pattern};
    use crate::line::Skip;

    const MAIN: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" "$http_x_forwarded_for""#;

    fn get(notation: &str, line: &str, field: &str) -> Option<String> {
        let mut parser = pattern::Parser::new(Arc::new(super::pattern(notation).unwrap()), false);
        let (time, record) = parser.parse(Message::plain(line.as_bytes())).ok()?;
        assert_eq!(time.nanos, 1_431_857_103_000_000_000, "{line}");
        record
            .get(&Field::new(field))
            .map(|v| String::from_utf8_lossy(v).into_owned())
    }

    #[test]
    fn nginx_notation() {
        let line = r#"192.0.2.7 - ann lee [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 5 "-" "say \"hi\" x" "9.9.9.9, 198.51.100.1""#;
        for (field, value) in [
            ("client", Some("192.0.2.7")),
            ("user", Some("ann lee")),
            ("path", Some("/a")),
            ("method", Some("GET")),
            ("status", Some("200")),
            ("bytes", Some("5")),
            ("referer", None),
            ("agent", Some(r#"say \"hi\" x"#)),
            ("forwarded_for", Some("9.9.9.9, 198.51.100.1")),
        ] {
            assert_eq!(get(MAIN, line, field).as_deref(), value, "{field}");
        }
        let listed = r#"$http_x_forwarded_for - ${msec} $request_uri $upstream_addr $msec"#;
        let line = "9.9.9.9, 198.51.100.1 - 1431857103.000 /a?b 10.0.0.1:80 7";
        assert_eq!(
            get(listed, line, "client").as_deref(),
            Some("9.9.9.9, 198.51.100.1")
        );
        assert_eq!(get(listed, line, "path").as_deref(), Some("/a"));
        assert_eq!(
            get(listed, line, "upstream_addr").as_deref(),
            Some("10.0.0.1:80")
        );
    }

    #[test]
    fn a_user_chooses_neither_the_time_nor_to_be_skipped() {
        let apache = r#"%h %l %u %t "%r" %>s"#;
        for user in [
            "a [1795741030]",
            "- [1795741030]",
            "[",
            "a [b",
            " a",
            r#"a [7] \"GET"#,
        ] {
            let line = format!(
                r#"192.0.2.7 - {user} [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "x" "-""#
            );
            assert_eq!(get(MAIN, &line, "user").as_deref(), Some(user));
            let line = line.split(" 5 ").next().unwrap_or("");
            assert_eq!(get(apache, line, "user").as_deref(), Some(user));
        }
    }

    #[test]
    fn two_times_without_quotes_are_ambiguous() {
        let parsed =
            super::pattern("$remote_addr - $remote_user [$time_local] $status $request_time");
        let mut parser = pattern::Parser::new(Arc::new(parsed.unwrap()), false);
        let line = "192.0.2.7 - a [1795741030] 200 0.1 [17/May/2015:10:05:03 +0000] 200 0.1";
        assert_eq!(
            parser.parse(Message::plain(line.as_bytes())).err(),
            Some(Skip::Ambiguous)
        );
    }

    #[test]
    fn apache_notation() {
        let notation =
            r#"%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i" %{X-Request-Id}i %D%%"#;
        let line = r#"example.org:443 192.0.2.7 - ann [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 5 "r" "a\"b" id7 12%"#;
        for (field, value) in [
            ("client", Some("192.0.2.7")),
            ("user", Some("ann")),
            ("path", Some("/a")),
            ("host", Some("example.org")),
            ("agent", Some(r#"a\"b"#)),
            ("x_request_id", Some("id7")),
            ("field_D", Some("12")),
        ] {
            assert_eq!(get(notation, line, field).as_deref(), value, "{field}");
        }
        let line = "192.0.2.7 2015-05-17 10:05:03 POST";
        assert_eq!(
            get("%a %{%F %T}t %m", line, "client").as_deref(),
            Some("192.0.2.7")
        );
        let line = "1431857103000 2001:db8::1";
        assert_eq!(
            get("%{msec}t %h", line, "client").as_deref(),
            Some("2001:db8::1")
        );
    }

    #[test]
    fn mistakes_are_reported() {
        for (notation, expected) in [
            ("", "the time"),
            ("$remote_addr", "the time"),
            ("%h %u", "the time"),
            ("$", "name behind $"),
            ("${msec", "expected a }"),
            ("%t %{x", "expected a }"),
            ("%t %", "expected a letter"),
            ("%t %?", "unknown directive"),
        ] {
            let error = super::pattern(notation).unwrap_err();
            assert!(error.contains(expected), "{notation}: {error}");
        }
    }
}
