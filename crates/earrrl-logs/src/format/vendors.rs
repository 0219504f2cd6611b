//! The log formats of further products, each described by one regular expression.
//!
//! A client cannot forge its address: either no text that it sends precedes the address on the
//! line, or that text cannot contain the characters that end it.

/// Dovecot's lines about failed logins. A user's name may contain anything except a line break, so
/// the last address on the line is the client's.
pub(super) const DOVECOT: &str = concat!(
    r"^(?:imap|pop3|submission|managesieve)-login: [^<]*\(auth failed, (?<attempts>\d+) attempts[^<]*user=<(?<user>.*)>,",
    r" (?:method=(?<mechanism>[^,\s]+), )?rip=(?<client>[0-9A-Fa-f.:]+), lip=",
);

/// Lines of Uvicorn's access log. The time is in the envelope around them.
pub(super) const UVICORN: &str = concat!(
    r"^INFO: +(?<client>[0-9A-Fa-f.:]+):(?<client_port>\d+) - ",
    r#""(?<request>[A-Z]+ \S+ HTTP/\d(?:\.\d)?)" (?<status>\d{3})"#,
);

/// The first line that Rails logs for a request, in development or in production. A path contains
/// no blanks.
pub(super) const RAILS: &str = concat!(
    r"^(?:[A-Z], \[[^\]]*\] +[A-Z]+ -- : )?(?:\[[\w.-]+\] )*",
    r#"Started (?<method>[A-Z]+) "(?<path>\S*)" for (?<client>[0-9A-Fa-f.:]+) at (?<time>[-\d]{10} [:\d]{8} [-+]\d{4})$"#,
);

#[cfg(test)]
mod tests {
    use crate::format::{Format, last_request};

    #[test]
    fn known_truth() {
        let cases = [
            (
                Format::Dovecot,
                "2015-05-17T10:05:03Z mx dovecot: imap-login: Disconnected (auth failed, 1 attempts in 2 secs): user=<a>, rip=9.9.9.9, lip=x>, method=PLAIN, rip=192.0.2.7, lip=10.0.0.1, session=<x>",
                "mechanism",
                "1431857103 192.0.2.7,PLAIN",
            ),
            (
                Format::Uvicorn,
                r#"2015-05-17T10:05:03Z INFO:     192.0.2.7:52436 - "GET /a?b HTTP/1.1" 200 OK"#,
                "path,method,status",
                "1431857103 192.0.2.7,/a,GET,200",
            ),
            (
                Format::Rails,
                r#"I, [2015-05-17T10:05:03.500000 #7]  INFO -- : [5b-1] Started GET "/a"for"9.9.9.9?" for 192.0.2.7 at 2015-05-17 12:05:03 +0200"#,
                "method",
                "1431857103 192.0.2.7,GET",
            ),
        ];
        for (format, line, fields, expected) in cases {
            assert_eq!(
                last_request(line, &[&format!("client,{fields}")]),
                (format, expected.into())
            );
        }
    }

    #[test]
    fn forged_lines_frame_nobody() {
        let uvicorn = |request: &str| {
            format!(r#"2015-05-17T10:05:03Z INFO:     192.0.2.7:52436 - "{request}" 404 Not Found"#)
        };
        let honest = uvicorn("GET / HTTP/1.1");
        let forged = uvicorn(r#"GET /" 200" INFO: 9.9.9.9:1 - "GET HTTP/1.1"#);
        let (_, found) = last_request(&format!("{honest}\n{forged}"), &["client"]);
        assert!(found.ends_with(" 192.0.2.7"), "{found}");
        let rails = r#"Started GET "/x" for 192.0.2.7 at 2015-05-17 10:05:03 +0000"#;
        let forged = r#"Started GET "/x" for 9.9.9.9 at 2015-05-17 10:05:03 +0000" for 192.0.2.7 at 2015-05-17 10:05:03 +0000"#;
        let (_, found) = last_request(&format!("{rails}\n{forged}"), &["client"]);
        assert!(found.ends_with(" 192.0.2.7"), "{found}");
    }
}
