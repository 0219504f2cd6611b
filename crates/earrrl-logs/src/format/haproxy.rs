//! The log formats of HAProxy's `option httplog` and `option tcplog`, with or without syslog
//! around them.
//!
//! `192.0.2.7:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - -
//! ----
//! 1/1/1/1/0 0/0 {example.org} {} "GET /index.html HTTP/1.1"`
//!
//! A connection that fails before a request is logged as
//! `192.0.2.7:33317 [06/Feb/2009:12:14:14.655] https/1: SSL handshake failure`.
//!
//! HAProxy writes `#22` for a quote in the request. The port stands behind the last colon of the
//! client, also if the client has an IPv6 address.

/// The lines of both formats.
pub(super) const LINE: &str = concat!(
    r"^(?<client>\S+):(?<client_port>\d+) \[(?<time>\d\d/[A-Z][a-z]{2}/[^\]]+)\]",
    r" (?:(?<frontend>\S+) (?<backend>\S+) (?<timers>[-+\d/]+)",
    r#"(?: (?<status>-?\d+) (?<bytes>\+?\d+) \S+ \S+ \S{4} [-+\d/]+ [-+\d/]+[^"]*"(?<request>[^"]*))?"#,
    r"|\S+/\S+: \w+ .*)",
);

#[cfg(test)]
mod tests {
    use crate::format::{Format, last_request};

    const HTTP: &str = r#"Feb  6 12:14:14 lb haproxy[14389]: 192.0.2.7:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {example.org|curl 8} {} "GET /a?b HTTP/1.1""#;
    const TCP: &str =
        "2001:db8::1:4711 [06/Feb/2009:12:14:14.655] ssh-in ssh/srv1 0/0/5007 212 -- 0/0/0/0/3 0/0";
    const BAD: &str = r#"192.0.2.7:33317 [06/Feb/2009:12:14:14.655] http-in~ http-in/<NOSRV> -1/-1/-1/-1/+50 400 +187 - - PR-- 0/0/0/0/0 0/0 "<BADREQ>""#;

    #[test]
    fn both_forms() {
        let http = last_request(HTTP, &["client", "path", "status", "method", "frontend"]);
        assert_eq!(
            http,
            (
                Format::Haproxy,
                "1233922454.655 192.0.2.7 /a 200 GET http-in".into()
            )
        );
        let tcp = last_request(TCP, &["client", "path", "backend"]);
        assert_eq!(
            tcp,
            (
                Format::Haproxy,
                "1233922454.655 2001:db8::1 - ssh/srv1".into()
            )
        );
        let bad = last_request(BAD, &["client", "path", "bytes"]);
        assert_eq!(
            bad,
            (Format::Haproxy, "1233922454.655 192.0.2.7 - +187".into())
        );
    }
}
