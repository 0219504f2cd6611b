//! The log formats of AWS load balancers and of S3's server access log. (CloudFront's logs are in
//! the W3C format.)
//!
//! - ALB, and the classic ELB, whose lines lack the first word: `https 2018-07-02T22:23:00.186641Z
//!   app/my-lb/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57
//!   "GET https://example.org:443/ HTTP/1.1" "curl/8" …`
//! - S3: `OWNER bucket [06/Feb/2019:00:00:38 +0000] 192.0.2.3 REQUESTER 3E57427F3EXAMPLE
//!   REST.GET.OBJECT key "GET /bucket/key HTTP/1.1" 200 - 113 - 7 - "-" "S3Console/0.4" - …`

/// The lines of application and classic load balancers. A client cannot forge its address, since
/// no text that it sends precedes the address on the line. Quotes in the later fields are not
/// escaped.
pub(super) const ALB: &str = concat!(
    r"^(?:(?<type>https?|h2|grpcs?|wss?) )?(?<time>\d{4}-\d\d-\d\dT\S+) (?<balancer>\S+)",
    r" \[?(?<client>[^\s\]]+)\]?:(?<client_port>\d+) (?<target>\S+) \S+ \S+ \S+",
    r" (?<status>\S+) (?<target_status>\S+) (?<bytes_received>\S+) (?<bytes>\S+)",
    r#"(?: "(?<request>\S+ \S+ [^\s"]+) ?"(?: "(?<agent>.*?)"(?: |$))?)?"#,
);

/// The lines of S3's server access log.
pub(super) const S3: &str = concat!(
    r"^(?<owner>\S+) (?<bucket>\S+) \[(?<time>[^\]]+)\] (?<client>\S+) (?<user>\S+) (?<request_id>\S+)",
    r#" (?<operation>[A-Z0-9]+\.[\w.]+) (?<object>\S+) (?:"(?<request>(?:[^"\\]|\\.)*)"|-)"#,
    r" (?<status>\S+) (?<error>\S+) (?<bytes>\S+)",
);

#[cfg(test)]
mod tests {
    use crate::format::{Format, last_request};

    const ALB: &str = r#"https 2018-07-02T22:23:00.186641Z app/my-lb/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 502 0 57 "GET https://example.org:443/a?b=c HTTP/1.1" "curl/8" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:x "Root=1-58337281-1d84" "example.org" "arn:y" 1 2018-07-02T22:22:48.364000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-""#;
    const ELB: &str = r#"2015-05-13T23:39:43.945958Z my-lb 2001:db8::1:2817 10.0.0.1:80 0.000073 0.001048 0.000057 200 200 0 29 "GET http://example.org:80/ HTTP/1.1" "curl/7.38.0" - -"#;
    const S3: &str = r#"79a59df900b949e5 bucket [06/Feb/2019:00:00:38 +0000] 192.0.2.3 arn:aws:iam::1:user/ann 3E57427F3EXAMPLE REST.GET.OBJECT photos/a.jpg "GET /bucket/photos/a.jpg?x HTTP/1.1" 200 - 113 - 7 - "-" "S3Console/0.4" - s9lz= SigV4 ECDHE-RSA-AES128-GCM-SHA256 AuthHeader bucket.s3.amazonaws.com TLSV1.2"#;

    #[test]
    fn load_balancers() {
        let alb = last_request(ALB, &["client", "path", "status", "bytes", "agent"]);
        assert_eq!(
            alb,
            (
                Format::Alb,
                "1530570180.186641 192.0.2.7 /a 200 57 curl/8".into()
            )
        );
        let elb = last_request(ELB, &["client", "path", "method"]);
        assert_eq!(
            elb,
            (Format::Alb, "1431560383.945958 2001:db8::1 / GET".into())
        );
        let none = ALB.replace("192.0.2.7:2817", "[2001:db8::1]:2817");
        assert_eq!(
            last_request(&none, &["client"]).1,
            "1530570180.186641 2001:db8::1"
        );
    }

    #[test]
    fn buckets() {
        let s3 = last_request(S3, &["client", "user", "path", "status", "bytes"]);
        let expected = "1549411238 192.0.2.3 arn:aws:iam::1:user/ann /bucket/photos/a.jpg 200 113";
        assert_eq!(s3, (Format::S3, expected.into()));
    }
}
