//! The log formats that one regular expression describes.
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

// The log formats of AWS load balancers and of S3's server access log. (CloudFront's logs are in
// the W3C format.)
//
// - ALB, and the classic ELB, whose lines lack the first word: `https 2018-07-02T22:23:00.186641Z
//   app/my-lb/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57
//   "GET https://example.org:443/ HTTP/1.1" "curl/8" …`
// - S3: `OWNER bucket [06/Feb/2019:00:00:38 +0000] 192.0.2.3 REQUESTER 3E57427F3EXAMPLE
//   REST.GET.OBJECT key "GET /bucket/key HTTP/1.1" 200 - 113 - 7 - "-" "S3Console/0.4" - …`

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

// The default access logs of Envoy and Istio.
//
// `[2016-04-15T20:17:00.310Z] "POST /v1/locations HTTP/2" 204 - 154 0 226 100 "192.0.2.7"
// "curl/8" "cc21d9b0-…" "locations" "tcp://10.0.2.1:80"`
//
// Envoy's format contains no address of the client except the list of X-Forwarded-For. Istio's
// format contains the address of the connection's peer near the end of the line, between the
// local address and the requested server name.
//
// Neither format escapes quotes. A request's target contains no blanks, so a client cannot forge
// any field before the list of X-Forwarded-For. The user agent behind it is free text, so the
// fields after the user agent are found from the end of the line.

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

// The log formats of HAProxy's `option httplog` and `option tcplog`, with or without syslog
// around them.
//
// `192.0.2.7:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - -
// ----
// 1/1/1/1/0 0/0 {example.org} {} "GET /index.html HTTP/1.1"`
//
// A connection that fails before a request is logged as
// `192.0.2.7:33317 [06/Feb/2009:12:14:14.655] https/1: SSL handshake failure`.
//
// HAProxy writes `#22` for a quote in the request. The port stands behind the last colon of the
// client, also if the client has an IPv6 address.

/// The lines of both formats.
pub(super) const HAPROXY: &str = concat!(
    r"^(?<client>\S+):(?<client_port>\d+) \[(?<time>\d\d/[A-Z][a-z]{2}/[^\]]+)\]",
    r" (?:(?<frontend>\S+) (?<backend>\S+) (?<timers>[-+\d/]+)",
    r#"(?: (?<status>-?\d+) (?<bytes>\+?\d+) \S+ \S+ \S{4} [-+\d/]+ [-+\d/]+[^"]*"(?<request>[^"]*))?"#,
    r"|\S+/\S+: \w+ .*)",
);

// The error logs of nginx and Apache.
//
// - nginx, for requests that `limit_req` and `limit_conn` have limited: `2024/01/01 12:00:00 [error]
//   31#31: *7 limiting requests, excess: 0.500 by zone "api", client: 192.0.2.7, server:
//   example.org, request: "GET / HTTP/1.1", host: "example.org"`
// - nginx, for all errors: `… *7 open() "/a" failed (2: No such file or directory), client:
//   192.0.2.7, server: …`
// - Apache: `[Mon Jan 01 12:00:00.500000 2024] [core:error] [pid 1:tid 2] [client 192.0.2.7:4711]
//   AH00124: …`; before version 2.4 without process and port. Some formats leave the port out, too, at
//   times without its colon. IPv6 addresses have no brackets: behind eight groups stands a port, and in an address with
//   `::` a last group of up to three digits is none, since clients have greater ports.
//
// The times have no zone, and are read as UTC.
//
// Apache writes the address before any text of the client, and so does nginx for limited requests.
// In other messages of nginx, such text may precede the address or follow it, so a line on which
// two fields of clients are possible is ambiguous. nginx does not escape line breaks in the paths
// of these messages: a client can forge whole lines of its error log, which no program can tell
// from others.

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
    r"(?:\[pid \d+(?::tid \d+)?\] (?:[\w.]+\(\d+\): )?(?:\(\d+\)[^\[]*: )?\[(?:client|remote) ",
    r"(?<client>[\d.]+|(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|[0-9A-Fa-f:]+:[1-9]\d{0,2}|[0-9A-Fa-f.:]*?[0-9A-Fa-f])",
    r"(?::(?<client_port>\d*))?\]",
    r"|\[client (?<key>[0-9A-Fa-f.:]+)\]) (?<message>.*)",
);

// The log formats of mail servers: Exim's main log and Postfix's syslog messages.
//
// A request is an accepted message, a refused message, or a failed login:
//
// - Exim: `2024-01-01 12:00:00 1rK2aB-0001Xy-2Z <= ann@example.org H=mx.example.org (helo)
//   [192.0.2.7] P=esmtps S=1234`, `… H=(helo) [192.0.2.7] F=<…> rejected RCPT <…>: …`, `… login
//   authenticator failed for (helo) [192.0.2.7]: 535 …`
// - Postfix: `Jan  1 12:00:00 mx postfix/smtpd[7]: 4XyZ: client=mx.example.org[192.0.2.7]`,
//   `… NOQUEUE: reject: RCPT from unknown[192.0.2.7]: 554 …`, `… warning: unknown[192.0.2.7]: SASL
//   LOGIN authentication failed: …`
//
// Every expression matches from the start of the line to the address that the server itself
// wrote, so that an address which the client sends in HELO or as a sender is never used. No other
// address may follow before the word that says what happened, except in the sender.

/// The lines of Exim's main log.
pub(super) const EXIM: &str = concat!(
    r"^(?:(?<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: [-+]\d{4})?) )?(?:\[\d+\] )?",
    r#"(?:[\w-]{16,23} <= (?<sender>"(?:[^"\\]|\\.)*"@\S+|\S+) (?:R=\S+ )?H="#,
    r"|[\w-]+ authenticator failed for |(?:[\w-]{16,23} )?H=",
    r#"|SMTP protocol synchronization error \([^)]*\): rejected (?:connection from|"[^"\s]*") H="#,
    r#"|SMTP call from (?:H=)?|SMTP protocol error in ".*" H=)"#,
    r"(?<host>[^\s(\[]+ )?(?:\([^)\s]*\) )?\[(?<client>[0-9A-Fa-f:.]+)\](?::\d+)?(?: I=\[[^\]]*\]:\d+)?(?: Ci=\d+)?",
    r"(?:: [45]\d\d | (?:F=<[^>]*> |[^\s\[]+ )*(?:P=|rejected )| dropped: too many | (?:next )?input=",
    r"| [A-Z]+ (?:command used when not advertised|authentication mechanism not supported)$)",
);

/// The lines of Postfix's syslog messages.
pub(super) const POSTFIX: &str = concat!(
    r"^(?:(?<queue>\w+): (?:client=|(?:milter-)?reject: \S+ from )|warning: |PREGREET \d+ after \S+ from )",
    r"(?<host>[^\s\[\]]*)\[(?<client>[0-9A-Fa-f:.]+)\]",
    r"(?:$|, |(?::\d+)?: (?:[45]\d\d |[45]\.\d+\.\d+ |[A-Z]{4} ?|\\|SASL (?<mechanism>\S+) authentication failed))",
);

// The logs of FTP servers and of Jira. The address stands before any text of the client, or is the first quoted text of
// a line on which the client's name can have no quote.

/// The time of vsftpd's lines and of transfer logs.
macro_rules! ftp_time {
    ($rest:literal) => {
        concat!(r"(?<time>\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}) ", $rest)
    };
}

/// vsftpd's lines about logins and commands.
pub(super) const VSFTPD: &str = concat!(
    "^(?:",
    ftp_time!(r"\[pid \d+\] )?"),
    r#"\[(?<user>[^"]*)\] (?<outcome>OK|FAIL) (?<method>[A-Z]+): Client "(?<client>[0-9A-Fa-f.:]+)"(?:, "(?<path>[^"]*)")?"#,
);

/// The lines of transfer logs, one for each file.
pub(super) const XFERLOG: &str = concat!(
    "^",
    ftp_time!(r"\d+ (?<client>\S+) (?<bytes>\d+) (?<path>.*) "),
    r"[ab] \S+ (?<direction>[oid]) [agr] (?<user>.*) \S+ [01] \S+ (?<outcome>[ci])$",
);

/// ProFTPD's lines about failed logins.
pub(super) const PROFTPD: &str = concat!(
    r"^(?:(?<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?) \S+ proftpd\[\d+\]:? )?",
    r"\S+ \([^\s\[\]]*\[(?<client>[0-9A-Fa-f.:]+)\]\)(?::| -) ",
    r"USER (?<user>.*)(?: \(Login failed\):|: no such user found )",
);

/// The lines of Jira's security log about failed logins.
pub(super) const JIRA: &str = concat!(
    r"^(?<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}(?:[-+]\d{4})?) \S+ (?:url: ?\S+ (?:user: \S+ )?)?",
    r"\S+ \S+ \S+ (?<client>[0-9A-Fa-f.:]+) (?<path>/\S*) The user '(?<user>.*)' has FAILED authentication",
);

// The messages of OpenSSH's daemon.
//
// The address is the one that the daemon itself wrote at the end of the line. It stands behind
// the user's name, which the client chooses and which may look like an address: `Invalid user
// from 9.9.9.9 from 192.0.2.7 port 22`. So nothing but the port, the protocol and the description of a key may
// follow the address. The description may contain names that the client has chosen: `… port 4711 ssh2: RSA
// SHA256:…, client user "bob", client host "x from 9.9.9.9 port 22"`, and the text `ssh2: ` may be part of the
// user's name, so [`super::sshd`] finds a line with another address or port behind that text ambiguous.

/// The lines about failed attempts to log in and their ends.
pub(super) const SSHD: &str = concat!(
    r"^(?:Failed \S+ for |error: PAM: .*? for |I(?:nvalid|llegal) user |Accepted .*? for ",
    r"|(?:Connection closed by|Connection reset by|Disconnected from) (?:authenticating|invalid) user )",
    r"(?:(?:invalid|illegal) user )?(?<user>.*?)(?: from)?",
    r" (?<client>\d+\.\d+\.\d+\.\d+|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%\w+)?)(?: port \d+(?: ssh\d?(?:: .*)?)?)?(?: \[preauth\])?$",
);

/// All lines with an IPv4 address behind one of a few words. One attempt to log in causes several such lines,
/// and a client that chooses a user's name can forge the address.
pub(super) const SSHD_LINES: &str = concat!(
    r"^(?:(?:.*? for (?:[Ii](?:nvalid|llegal) user )?|[Ii](?:nvalid|llegal) user )(?<user>\S+))?.*?(?:from |rhost=|\[)",
    r"(?<client>(?:25[0-5]|2[0-4]\d|[01]?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|[01]?\d?\d)){3})(?:[^\d].* user=(?<account>\S+)|[^\d]|$)",
);

#[cfg(test)]
mod vendors_tests {
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

#[cfg(test)]
mod transfer_tests {
    use crate::format::{Format, last_request};

    #[test]
    fn transfers_and_failed_logins() {
        let day = "Mon Jan  1 12:00:00 2024";
        let stamp = "2024-01-01 12:00:00,000";
        let cases = [
            (Format::Vsftpd, format!("{day} [pid 7] [x] FAIL LOGIN: Client 9.9.9.9] FAIL LOGIN: Client \"192.0.2.7\"")),
            (Format::Vsftpd, format!("{day} [pid 7] [ftp] OK LOGIN: Client \"192.0.2.7\", anon password \"] OK LOGIN: Client \"9.9.9.9\"\"")),
            (Format::Vsftpd, format!("{day} [pid 7] [ann] OK DOWNLOAD: Client \"192.0.2.7\", \"/a\", 5 bytes, 1.00Kbyte/sec")),
            (Format::Xferlog, format!("{day} 1 192.0.2.7 5 /a 9.9.9.9 b b _ o a ann 9.9.9.9@x ftp 0 * c")),
            (Format::Proftpd, format!("{stamp} mx proftpd[7] 10.0.0.1 (h.example[192.0.2.7]): USER (x[9.9.9.9]): USER a (Login failed): Incorrect password")),
            (Format::Proftpd, "2024-01-01T12:00:00Z mx proftpd[7]: 10.0.0.1 (h.example[192.0.2.7]) - USER bob: no such user found from h.example [192.0.2.7] to 10.0.0.1:21".into()),
            (Format::Jira, format!("{stamp}+0000 http-nio-8080-exec-7 url:/login.jsp anonymous 720x1x1 1abc 192.0.2.7 /login.jsp The user '9.9.9.9 /' has FAILED authentication. Failure count equals 1")),
            (Format::Jira, format!("{stamp} http-8080-1 anonymous 720x1x1 - 192.0.2.7 /rest/login The user 'ann' has FAILED authentication.  Failure count equals 3")),
        ];
        for (format, line) in cases {
            let found = last_request(&line, &["client"]);
            assert_eq!(found, (format, "1704110400 192.0.2.7".into()), "{line}");
        }
    }
}

#[cfg(test)]
mod aws_tests {
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

#[cfg(test)]
mod envoy_tests {
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

#[cfg(test)]
mod haproxy_tests {
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

#[cfg(test)]
mod error_logs_tests {
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
            (
                format!("[php:error] {process} [client 2001:db8::1]"),
                "2001:db8::1",
            ),
            (
                format!("[core:error] {process} [client 192.0.2.7:]"),
                "192.0.2.7",
            ),
            (
                format!("[core:error] {process} [remote 192.0.2.7:80]"),
                "192.0.2.7",
            ),
            (
                format!("[core:error] {process} [client ::ffff:192.0.2.7:80]"),
                "192.0.2.7",
            ),
            (
                format!("[core:error] {process} [client 2001:db8::5:17]"),
                "2001:db8::5:17",
            ),
            (
                format!("[core:error] {process} [client 2001:db8:1:2:3:4:5:4711]"),
                "2001:db8:1:2:3:4:5:4711",
            ),
            (
                format!("[core:error] {process} [client 2001:db8:1:2:3:4:5:6:4711]"),
                "2001:db8:1:2:3:4:5:6",
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

#[cfg(test)]
mod mail_tests {
    use crate::format::{Format, last_request};

    #[test]
    fn exim() {
        let lines = [
            "1rK2aB-0001Xy-2Z <= ann@example.org H=mx.example.org [192.0.2.7] P=esmtps S=1234",
            "1rK2aB-0001Xy-2Z <= ann@example.org H=mx.example.org (helo) [192.0.2.7]:4711 I=[10.0.0.1]:25 P=esmtp",
            r#"1rK2aB-0001Xy-2Z <= "a H=x [9.9.9.9] P="@b.example H=([9.9.9.9]) [192.0.2.7] P=smtp S=1"#,
            "H=([9.9.9.9]) [192.0.2.7] F=<a@b.example> rejected RCPT <c@d.example>: relay not permitted",
            "H=mx.example.org [192.0.2.7] temporarily rejected connection in \"connect\" ACL",
            "dovecot_login authenticator failed for (User) [192.0.2.7]: 535 Incorrect authentication data",
            r#"SMTP protocol synchronization error (input sent without waiting for greeting): rejected connection from H=[192.0.2.7] input="H=[9.9.9.9] input=""#,
            r#"SMTP protocol synchronization error (next input sent too soon: pipelining was not advertised): rejected "EHLO" H=([9.9.9.9]) [192.0.2.7]:99 next input="x""#,
            r#"SMTP call from h.example (9.9.9.9) [192.0.2.7] dropped: too many syntax or protocol errors (last command was "H=[9.9.9.9] rejected ")"#,
            r#"SMTP protocol error in "AUTH x" H=(y) [9.9.9.9] AUTH command used when not advertised" H=(z) [192.0.2.7] AUTH command used when not advertised"#,
            "plain authenticator failed for h.example ([9.9.9.9]) [192.0.2.7]:99: 535 Incorrect (set_id=a)",
            "login authenticator failed for (User) [192.0.2.7]:99 I=[9.9.9.9]:465 Ci=7: 535 Incorrect (set_id=a)",
        ];
        for line in lines {
            for stamp in ["2024-01-01 12:00:00", "2024-01-01 13:00:00.000 +0100 [77]"] {
                let line = format!("{stamp} {line}");
                let found = last_request(&line, &["client"]);
                assert_eq!(
                    found,
                    (Format::Exim, "1704110400 192.0.2.7".into()),
                    "{line}"
                );
            }
        }
        let syslog = format!("2024-01-01T12:00:00Z mx exim[7]: {}", lines[0]);
        assert_eq!(
            last_request(&syslog, &["client"]),
            (Format::Exim, "1704110400 192.0.2.7".into())
        );
    }

    #[test]
    fn postfix() {
        for line in [
            "smtpd[7]: 4XyZ12: client=mx.example.org[192.0.2.7]",
            "smtpd[7]: 4XyZ12: client=unknown[192.0.2.7], sasl_method=PLAIN, sasl_username=ann",
            "smtpd[7]: NOQUEUE: reject: RCPT from unknown[192.0.2.7]: 554 5.7.1 <x>: Relay access denied; helo=<[9.9.9.9]>",
            "postscreen[7]: NOQUEUE: reject: RCPT from [192.0.2.7]:4711: 550 5.7.1 Service unavailable; helo=<x[9.9.9.9]: 550 >",
            "postscreen[7]: PREGREET 11 after 0.07 from [192.0.2.7]:4711: EHLO x[9.9.9.9]",
            r"postscreen[7]: PREGREET 47 after 0 from [192.0.2.7]:4711: \003\000 from [9.9.9.9]:1: EHLO",
            "cleanup[7]: 4XyZ12: milter-reject: END-OF-MESSAGE from mx.example.org[192.0.2.7]: 5.7.1 spam; from=<a@b.example>",
            "submission/smtpd[7]: warning: unknown[192.0.2.7]: SASL LOGIN authentication failed: UGFz",
        ] {
            let line = format!("2024-01-01T12:00:00+00:00 mx postfix/{line}");
            let found = last_request(&line, &["client"]);
            assert_eq!(
                found,
                (Format::Postfix, "1704110400 192.0.2.7".into()),
                "{line}"
            );
        }
    }
}

#[cfg(test)]
mod sshd_lines_tests {
    use std::sync::Arc;

    use super::SSHD_LINES;
    use crate::envelope::Message;
    use crate::format::Field;
    use crate::format::pattern::{LinePattern, Parser};
    use crate::line::Skip;

    fn parse(program: &str, message: &str, field: &Field) -> Result<Option<String>, Skip> {
        let text = Message::plain(message.as_bytes());
        let pattern = Arc::new(LinePattern::preset(SSHD_LINES, "sshd"));
        let mut parser = Parser::new(pattern, false);
        let record = parser.parse(Message {
            program: program.as_bytes(),
            time: Some(crate::line::time::Stamp::utc(1)),
            ..text
        });
        let (_, record) = record?;
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        Ok(record.get(field).map(text))
    }

    #[test]
    fn an_address_stands_behind_a_mark() {
        let cases = [
            ("Invalid user x from 192.0.2.7", Some("192.0.2.7")),
            (
                "Failed password for root from 192.0.2.7 port 22 ssh2",
                Some("192.0.2.7"),
            ),
            (
                "failure; rhost=192.0.2.7.dynamic.example.net  user=root",
                Some("192.0.2.7"),
            ),
            (
                "checking getaddrinfo for a.example [192.0.2.7] failed",
                Some("192.0.2.7"),
            ),
            (
                "from host.example [192.0.2.7]: from 198.51.100.1",
                Some("192.0.2.7"),
            ),
            (
                "input_userauth_request: invalid user webmaster [preauth]",
                None,
            ),
            ("Connection closed by 192.0.2.7", None),
            ("from 192.0.2.256", None),
            ("from 192.0.2", None),
            ("from 192.0.2.1234", None),
            ("from 192..2.1", None),
        ];
        for (message, address) in cases {
            let expected = address.ok_or(Skip::NoRequest);
            let expected = expected.map(|address| Some(address.to_owned()));
            let found = parse("sshd[24200]", message, &Field::Client);
            assert_eq!(found, expected, "{message}");
        }
    }

    #[test]
    fn other_programs_are_skipped() {
        let found = parse("cron[1]", "from 192.0.2.7", &Field::Client);
        assert_eq!(found, Err(Skip::Malformed));
    }

    #[test]
    fn users() {
        for (message, user) in [
            (
                "Failed password for root from 192.0.2.7 port 22",
                Some("root"),
            ),
            (
                "Failed password for invalid user bob from 192.0.2.7",
                Some("bob"),
            ),
            (
                "authentication failure; rhost=192.0.2.7  user=root",
                Some("root"),
            ),
            ("Connection reset from 192.0.2.7", None),
        ] {
            let found = parse("sshd[1]", message, &Field::User);
            assert_eq!(found, Ok(user.map(str::to_owned)), "{message}");
        }
    }
}
