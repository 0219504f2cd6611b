//! The error logs of nginx and Apache.
//!
//! - nginx, for requests that `limit_req` and `limit_conn` have limited: `2024/01/01 12:00:00 [error]
//!   31#31: *7 limiting requests, excess: 0.500 by zone "api", client: 192.0.2.7, server:
//!   example.org, request: "GET / HTTP/1.1", host: "example.org"`
//! - nginx, for all errors: `… *7 open() "/a" failed (2: No such file or directory), client:
//!   192.0.2.7, server: …`
//! - Apache: `[Mon Jan 01 12:00:00.500000 2024] [core:error] [pid 1:tid 2] [client 192.0.2.7:4711]
//!   AH00124: …`; before version 2.4 without process and port. Some formats leave the port out, too.
//!
//! The times have no zone, and are read as UTC.
//!
//! Apache writes the address before any text of the client, and so does nginx for limited requests.
//! In other messages of nginx, such text may precede the address or follow it, so a line on which
//! two fields of clients are possible is ambiguous. nginx does not escape line breaks in the paths
//! of these messages: a client can forge whole lines of its error log, which no program can tell
//! from others.

/// The start of each line of nginx: time, level, process and connection.
macro_rules! nginx {
    ($rest:literal) => {
        concat!(
            r"^(?<time>\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) \[(?<level>\w+)\] \d+#\d+: (?:\*\d+ )?",
            $rest
        )
    };
}

/// The lines of nginx about limited requests.
pub(super) const NGINX_LIMIT: &str = nginx!(
    r#"(?:limiting requests|delaying request|limiting connections)(?:, dry run)?,? (?:excess: (?<excess>[\d.]+),? )?by zone "(?<zone>[^"]*)", client: (?<client>[^,\s]+)(?:, server: (?<host>[^,]*), request: "(?<request>(?:[^"\\]|\\.)*)")?"#
);

/// All lines of nginx about a client.
pub(super) const NGINX: &str = nginx!(
    r#"(?<message>.*?), client: (?<client>[0-9A-Fa-f.:]+), server: (?<host>[^,]*)(?:.*(?<twin>, client: [0-9A-Fa-f.:]+, server: )|, request: "(?<request>(?:[^"\\]|\\.)*)"|)"#
);

/// The lines of Apache about a client.
pub(super) const APACHE: &str = concat!(
    r"^\[(?<time>\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? \d{4})\] \[(?<level>[\w:-]+)\] ",
    r"(?:\[pid \d+(?::tid \d+)?\] (?:[\w.]+\(\d+\): )?(?:\(\d+\)[^\[]*: )?\[(?:client|remote) (?<client>[0-9A-Fa-f.:]+?)(?::(?<client_port>\d+))?\]",
    r"|\[client (?<key>[0-9A-Fa-f.:]+)\]) (?<message>.*)",
);

#[cfg(test)]
mod tests {
    use crate::format::{Format, last_request};

    #[test]
    fn limited_requests() {
        let tail = r#"by zone "api", client: 2001:db8::1, server: example.org, request: "GET /a?client: 9.9.9.9, HTTP/1.1", host: "example.org""#;
        for start in [
            "[error] 31#31: *7 limiting requests, excess: 0.500 ",
            "[warn] 31#31: *7 delaying request, excess: 0.500, ",
            "[error] 31#31: *7 limiting requests, dry run, excess: 0.500 ",
            "[error] 31#31: *7 limiting connections ",
        ] {
            let line = format!("2024/01/01 12:00:00 {start}{tail}");
            let found = last_request(&line, &["client", "path", "zone", "host"]);
            let expected = "1704110400 2001:db8::1 /a api example.org";
            assert_eq!(found, (Format::NginxLimit, expected.into()), "{line}");
        }
    }

    #[test]
    fn all_errors_of_nginx() {
        for message in [
            r#"open() "/srv/a" failed (2: No such file or directory)"#,
            r#"user "x, client: y" was not found in "/etc/users""#,
            "client sent invalid header line while reading client request headers",
        ] {
            let line = format!(
                r#"2024/01/01 12:00:00 [error] 31#31: *7 {message}, client: 192.0.2.7, server: example.org, request: "GET /a HTTP/1.1", host: "x""#
            );
            let found = last_request(&line, &["client", "path", "host"]);
            assert_eq!(
                found,
                (
                    Format::NginxError,
                    "1704110400 192.0.2.7 /a example.org".into()
                ),
                "{line}"
            );
        }
    }

    #[test]
    fn apache() {
        let process = "[pid 1:tid 2]";
        for (front, client) in [
            (
                format!("[core:error] {process} [client 192.0.2.7:4711]"),
                "192.0.2.7",
            ),
            (
                format!("[core:error] {process} (2)No such file: [client ::1:4711]"),
                "::1",
            ),
            (
                "[php:notice] [pid 7] mod.c(80): [client 192.0.2.7:1]".into(),
                "192.0.2.7",
            ),
            (
                format!("[core:error] {process} [client 192.0.2.7]"),
                "192.0.2.7",
            ),
            (
                format!("[core:error] {process} [client 2001:db8::1:4711]"),
                "2001:db8::1",
            ),
            ("[error] [client 192.0.2.7]".into(), "192.0.2.7"),
            ("[error] [client 2001:db8::1]".into(), "2001:db8::1"),
        ] {
            for time in [
                "Mon Jan 01 12:00:00.000000 2024",
                "Mon Jan  1 12:00:00 2024",
            ] {
                let line = format!("[{time}] {front} AH1: [client 9.9.9.9:1] x, referer: y");
                let found = last_request(&line, &["client"]);
                assert_eq!(
                    found,
                    (Format::ApacheError, format!("1704110400 {client}")),
                    "{line}"
                );
            }
        }
    }
}
