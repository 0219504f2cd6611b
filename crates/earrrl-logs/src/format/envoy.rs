//! The default access logs of Envoy and Istio.
//!
//! `[2016-04-15T20:17:00.310Z] "POST /v1/locations HTTP/2" 204 - 154 0 226 100 "192.0.2.7"
//! "curl/8" "cc21d9b0-…" "locations" "tcp://10.0.2.1:80"`
//!
//! Envoy's format contains no address of the client except the list of X-Forwarded-For. Istio's
//! format contains the address of the connection's peer near the end of the line, between the
//! local address and the requested server name.
//!
//! Neither format escapes quotes. A request's target contains no blanks, so a client cannot forge
//! any field before the list of X-Forwarded-For. The user agent behind it is free text, so the
//! fields after the user agent are found from the end of the line.

/// The expression for the start of both formats, up to the upstream host.
macro_rules! start {
    ($details:literal) => {
        concat!(
            r#"^\[(?<time>[^\]]+)\] "(?<request>\S+ \S+ \S+)" (?<status>\d+) (?<flags>\S+) "#,
            $details,
            r"(?<bytes_received>\d+) (?<bytes>\d+) (?<duration>\d+) \S+",
            r#" "(?<forwarded_for>[^"]*)" "(?<agent>.*)" "(?<request_id>[^"]*)""#,
            r#" "(?<host>[^"]*)" "(?<upstream>[^"]*)""#,
        )
    };
}

/// The lines of Envoy's default format.
pub(super) const ENVOY: &str = concat!(start!(""), "$");

/// The lines of Istio's default format.
pub(super) const ISTIO: &str = concat!(
    start!(r#"(?<details>\S+) \S+ "[^"]*" "#),
    r" \S+ \S+ (?<local>\S+) (?<client>\S+) (?<server>\S+) (?<route>\S+)$",
);

#[cfg(test)]
mod tests {
    use crate::format::{Format, last_request};

    const ENVOY: &str = r#"[2016-04-15T20:17:00.310Z] "POST /a?b HTTP/2" 204 - 154 0 226 100 "9.9.9.9, 192.0.2.7" "curl \"8\"" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80""#;
    const ISTIO: &str = r#"[2020-11-25T21:26:18.409Z] "GET /status/418 HTTP/1.1" 418 - via_upstream - "-" 0 135 3 1 "-" "curl/8" "84961386-6d84-929d-98bd-c5aee93b5c88" "httpbin:8000" "127.0.0.1:80" inbound|8000|| 127.0.0.1:41854 10.44.1.27:80 192.0.2.7:37652 outbound_.8000_._.httpbin.foo.svc.cluster.local default"#;

    #[test]
    fn the_address_that_envoy_has_seen() {
        let envoy = last_request(ENVOY, &["client", "path", "status", "host", "bytes"]);
        assert_eq!(
            envoy,
            (
                Format::Envoy,
                "1460751420.31 192.0.2.7 /a 204 locations 0".into()
            )
        );
        let istio = last_request(ISTIO, &["client", "path", "status", "host"]);
        let expected = "1606339578.409 192.0.2.7 /status/418 418 httpbin:8000";
        assert_eq!(istio, (Format::Istio, expected.into()));
    }
}
