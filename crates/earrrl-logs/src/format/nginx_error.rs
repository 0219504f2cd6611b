//! The error log of nginx, for requests that `limit_req` and `limit_conn` have limited.
//!
//! `2024/01/01 12:00:00 [error] 31#31: *7 limiting requests, excess: 0.500 by zone "api", client:
//! 192.0.2.7, server: example.org, request: "GET / HTTP/1.1", host: "example.org"`
//!
//! A client cannot forge its address, since no text that it sends precedes the address on the
//! line.

/// The lines of nginx's error log about limited requests. Their time, which has no zone, is read
/// as UTC.
pub(super) const LINE: &str = concat!(
    r"^(?<time>\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) \[(?<level>\w+)\] \d+#\d+: (?:\*\d+ )?",
    r"(?:limiting requests|delaying request|limiting connections)(?:, dry run)?,? ",
    r#"(?:excess: (?<excess>[\d.]+),? )?by zone "(?<zone>[^"]*)", client: (?<client>[^,\s]+)"#,
    r#"(?:, server: (?<host>[^,]*), request: "(?<request>(?:[^"\\]|\\.)*)")?"#,
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
            assert_eq!(found, (Format::NginxError, expected.into()), "{line}");
        }
    }
}
