//! The list of all log formats. A new format is added as one entry in this file.
//!
//! The formats' names, the detection by `auto`, `--help` and the parser are derived from the
//! entries, and the tests parse each entry's example. A missing part is therefore a compile error
//! or a failing test.

use super::named::Notation;
use super::{Hints, columns, vendors};

/// The syntax of a format, which selects its parser.
#[derive(Clone, Copy)]
pub(super) enum Syntax {
    /// The common log format; if `vhost` is true, with a virtual host in front.
    Common { vhost: bool },
    /// Names and values.
    Named(Notation),
    /// A regular expression, and a prefix of the program name that syslog must report.
    Expression(&'static str, &'static str),
    /// The expression of `--pattern` or `--log-format`.
    Given,
}

/// The way in which `auto` recognizes a format.
#[derive(Clone, Copy)]
pub(super) enum Detection {
    /// A format is selected if it can parse the most of the first lines and finds a client on
    /// them. If several formats parse equally many lines, the first in the list is selected.
    Lines,
    /// A format is selected if this function returns true for the first line, the header.
    Header(fn(&[u8], &Hints) -> bool),
    /// The option `auto` never selects the format.
    Never,
}

/// One log format in the list.
pub(super) struct Entry {
    pub(super) name: &'static str,
    /// The names of products, which users may give instead of the format's name.
    pub(super) products: &'static [&'static str],
    pub(super) syntax: Syntax,
    pub(super) detection: Detection,
    /// The programs that write the format, as text for `--help`.
    pub(super) writers: &'static str,
    /// An example log of one request, as `--help` shows it.
    pub(super) example: &'static str,
}

macro_rules! formats {
    ($(
        $(#[$doc:meta])*
        $format:ident = $name:literal $products:expr, $syntax:expr, $detection:expr,
        $writers:literal, $example:expr;
    )*) => {
        /// A log format.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Format { $($(#[$doc])* $format,)* }

        impl Format {
            /// Every format, in the order in which `auto` tries them.
            pub const ALL: &[Self] = &[$(Self::$format),*];

            pub(super) const fn entry(self) -> Entry {
                match self {
                    $(Self::$format => Entry {
                        name: $name,
                        products: &$products,
                        syntax: $syntax,
                        detection: $detection,
                        writers: $writers,
                        example: $example,
                    },)*
                }
            }
        }
    };
}

use Detection::{Header, Lines, Never};
use Syntax::{Expression, Named};

// Specific formats precede general ones, since a line with a virtual host in front can also be
// parsed as the combined log format.
formats! {
    /// The combined log format with a virtual host in front.
    Vhost = "vhost" [], Syntax::Common { vhost: true }, Lines,
        "the same behind host:port",
        r#"example.org:443 192.0.2.7 - ann [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl/8""#;
    /// The combined log format: client, user, time, request, status, size, referrer, user agent.
    Combined = "combined" ["nginx", "apache"], Syntax::Common { vhost: false }, Lines,
        "nginx, Apache, Traefik, HAProxy's CLF",
        r#"192.0.2.7 - ann [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl/8""#;
    /// The combined log format without referrer and user agent.
    Common = "common" [], Syntax::Common { vhost: false }, Never,
        "the same without the two last fields",
        r#"192.0.2.7 - ann [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5"#;
    /// One JSON object on each line.
    Json = "json" ["traefik", "caddy", "cloudflare", "gcp", "kong", "api-gateway"], Named(Notation::Json), Lines,
        "Caddy, Traefik, Envoy, Cloudflare, Google Cloud, Kong, API Gateway, AWS WAF, Suricata, Azure",
        r#"{"ts":1431857103.5,"client_ip":"192.0.2.7","uri":"/a"}"#;
    /// Comma-separated values under the header `time,key[,cost]`.
    Csv = "csv" [], Named(Notation::Csv), Header(columns::is_csv),
        "a header with time and key, and then lines",
        "time,key\n2015-05-17T10:05:03Z,ann";
    /// The W3C extended log format.
    W3c = "w3c" ["iis", "cloudfront", "zeek"], Named(Notation::W3c), Header(columns::is_w3c),
        "IIS, CloudFront, Zeek",
        "#Fields: date time c-ip cs-uri-stem\n2024-01-01 12:00:00 192.0.2.7 /a";
    /// HAProxy's HTTP and TCP logs.
    Haproxy = "haproxy" [], Expression(vendors::HAPROXY, ""), Lines,
        "HAProxy's httplog and tcplog",
        r#"192.0.2.7:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET /a HTTP/1.1""#;
    /// Envoy's default format.
    Envoy = "envoy" [], Expression(vendors::ENVOY, ""), Lines,
        "Envoy's default",
        r#"[2016-04-15T20:17:00.310Z] "GET /a HTTP/2" 200 - 0 5 2 1 "192.0.2.7" "curl/8" "cc21d9b0" "example.org" "10.0.2.1:80""#;
    /// Istio's default format.
    Istio = "istio" [], Expression(vendors::ISTIO, ""), Lines,
        "Istio's default",
        r#"[2020-11-25T21:26:18.409Z] "GET /a HTTP/1.1" 200 - via_upstream - "-" 0 5 3 1 "-" "curl/8" "84961386" "httpbin:8000" "10.44.1.27:80" inbound 127.0.0.1:1 10.44.1.27:80 192.0.2.7:37652 httpbin default"#;
    /// The access logs of AWS's application and classic load balancers.
    Alb = "alb" ["elb"], Expression(vendors::ALB, ""), Lines,
        "AWS's load balancers, new and classic",
        r#"https 2018-07-02T22:23:00.186641Z app/my-lb/50dc 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://example.org:443/a HTTP/1.1" "curl/8""#;
    /// AWS S3's server access log.
    S3 = "s3" [], Expression(vendors::S3, ""), Lines,
        "AWS S3",
        r#"79a59df9 bucket [06/Feb/2019:00:00:38 +0000] 192.0.2.3 arn:ann 3E57427F REST.GET.OBJECT a.jpg "GET /bucket/a.jpg HTTP/1.1" 200 - 113 - 7 - "-" "-" -"#;
    /// The requests that nginx has limited, from its error log.
    NginxLimit = "nginx-limit" [], Expression(vendors::NGINX_LIMIT, ""), Lines,
        "what nginx's limit_req and limit_conn have limited",
        r#"2024/01/01 12:00:00 [error] 31#31: *7 limiting requests, excess: 0.500 by zone "api", client: 192.0.2.7, server: example.org, request: "GET /a HTTP/1.1""#;
    /// All lines of nginx's error log that name a client.
    NginxError = "nginx-error" [], Expression(vendors::NGINX, ""), Lines,
        "nginx's error log, in which clients can forge lines",
        r#"2024/01/01 12:00:00 [error] 31#31: *7 open() "/srv/a" failed (2: No such file or directory), client: 192.0.2.7, server: example.org, request: "GET /a HTTP/1.1""#;
    /// All lines of Apache's error log that name a client.
    ApacheError = "apache-error" [], Expression(vendors::APACHE, ""), Lines,
        "Apache's error log",
        "[Mon Jan 01 12:00:00.500000 2024] [core:error] [pid 7:tid 9] [client 192.0.2.7:4711] AH00124: Request exceeded the limit of 10 internal redirects";
    /// Exim's main log.
    Exim = "exim" [], Expression(vendors::EXIM, ""), Lines,
        "messages, refusals, failed logins",
        "2024-01-01 12:00:00 H=(helo) [192.0.2.7] F=<a@example.org> rejected RCPT <b@example.org>: relay not permitted";
    /// Postfix's syslog messages.
    Postfix = "postfix" [], Expression(vendors::POSTFIX, "postfix"), Lines,
        "messages, refusals, failed logins",
        "Jan  1 12:00:00 mx postfix/smtpd[7]: NOQUEUE: reject: RCPT from unknown[192.0.2.7]: 554 5.7.1 Relay access denied";
    /// Failed login attempts in OpenSSH's syslog messages; each attempt counts once.
    Sshd = "sshd" ["ssh"], Expression(vendors::SSHD, "sshd"), Lines,
        "OpenSSH's failed attempts, each once",
        "Jan  1 12:00:00 host sshd[7]: Failed password for root from 192.0.2.7 port 4711 ssh2";
    /// All of OpenSSH's syslog messages that contain an address.
    SshdLines = "sshd-lines" [], Expression(vendors::SSHD_LINES, "sshd"), Never,
        "every line of OpenSSH with an IPv4 address",
        "Jan  1 12:00:00 host sshd[7]: Invalid user bob from 192.0.2.7";
    /// Lines of `name=value` pairs.
    Logfmt = "logfmt" ["heroku"], Named(Notation::Logfmt), Lines,
        "Heroku's router, many programs",
        r#"2012-10-11T03:47:20+00:00 heroku[router]: at=info method=GET path="/a" fwd="192.0.2.7" status=200"#;
    /// Labelled tab-separated values.
    Ltsv = "ltsv" [], Named(Notation::Ltsv), Lines,
        "labelled tab-separated values",
        "time:2015-05-17T10:05:03Z\thost:192.0.2.7\treq:GET /a HTTP/1.1\tstatus:200";
    /// Failed logins in Dovecot's log.
    Dovecot = "dovecot" [], Expression(vendors::DOVECOT, "dovecot"), Lines,
        "Dovecot's failed logins",
        "Jan  1 12:00:00 mx dovecot: imap-login: Disconnected (auth failed, 1 attempts in 2 secs): user=<ann>, method=PLAIN, rip=192.0.2.7, lip=10.0.0.1";
    /// Uvicorn's access log.
    Uvicorn = "uvicorn" [], Expression(vendors::UVICORN, ""), Lines,
        "Uvicorn, with times by Docker or journald",
        r#"2015-05-17T10:05:03Z INFO:     192.0.2.7:52436 - "GET /a HTTP/1.1" 200 OK"#;
    /// The log of Rails applications.
    Rails = "rails" [], Expression(vendors::RAILS, ""), Lines,
        "Rails",
        r#"Started GET "/a" for 192.0.2.7 at 2015-05-17 10:05:03 +0000"#;
    /// vsftpd's log of logins and commands.
    Vsftpd = "vsftpd" [], Expression(vendors::VSFTPD, ""), Lines,
        "vsftpd's logins and commands",
        r#"Mon Jan  1 12:00:00 2024 [pid 7] [ann] FAIL LOGIN: Client "192.0.2.7""#;
    /// The transfer log of FTP servers.
    Xferlog = "xferlog" [], Expression(vendors::XFERLOG, ""), Lines,
        "transfers of FTP servers",
        "Mon Jan  1 12:00:00 2024 1 192.0.2.7 5 /a b _ o r ann ftp 0 * c";
    /// Failed logins in ProFTPD's log.
    Proftpd = "proftpd" [], Expression(vendors::PROFTPD, ""), Lines,
        "ProFTPD's failed logins",
        "2024-01-01 12:00:00,123 mx proftpd[7] 10.0.0.1 (192.0.2.7[192.0.2.7]): USER ann (Login failed): Incorrect password";
    /// Failed logins in Jira's security log.
    Jira = "jira" [], Expression(vendors::JIRA, ""), Lines,
        "Jira's failed logins",
        "2024-01-01 12:00:00,123+0000 http-8080-1 anonymous 720x1x1 - 192.0.2.7 /login.jsp The user 'ann' has FAILED authentication.";
    /// The format that `--pattern` or `--log-format` describes.
    Pattern = "pattern" [], Syntax::Given, Never, "", "";
}

impl Format {
    /// Returns the format's name on the command line.
    ///
    /// ```
    /// # use earrrl_logs::format::Format;
    /// assert_eq!(Format::Combined.name(), "combined");
    /// ```
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// Returns true if logs in this format usually contain other lines as well, which are not
    /// requests.
    pub(crate) fn is_one_of_many(self) -> bool {
        matches!(self.entry().syntax, Syntax::Expression(..) | Syntax::Given)
    }

    /// Returns true if a user in a log of this format is a name with which a login was tried.
    pub(crate) fn has_tried_names(self) -> bool {
        matches!(
            self,
            Self::Sshd | Self::SshdLines | Self::Dovecot | Self::Proftpd | Self::Jira
        )
    }

    /// Returns the format with this name, or the format that the product with this name writes.
    ///
    /// ```
    /// # use earrrl_logs::format::Format;
    /// let combined = Format::named("combined").ok_or("no such format")?;
    /// assert_eq!((combined, Format::named("nginx")), (Format::Combined, Some(Format::Combined)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        let stands_for = |entry: &Entry| entry.name == name || entry.products.contains(&name);
        Self::that_have_names().find(|format| stands_for(&format.entry()))
    }

    /// Returns the names of all formats, with commas between them.
    ///
    /// ```
    /// assert!(earrrl_logs::format::Format::names().contains("combined"));
    /// ```
    pub fn names() -> String {
        Self::that_have_names()
            .map(Self::name)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns the list of all formats with examples, as text for `--help`.
    pub fn help() -> String {
        let mut text = String::new();
        for Entry {
            name,
            writers,
            example,
            ..
        } in Self::that_have_names().map(Self::entry)
        {
            text += &format!(
                "  {name:<17} {writers}\n      {}\n",
                example.replace('\n', "\n      ")
            );
        }
        text
    }

    /// Returns every format that `--format` accepts.
    fn that_have_names() -> impl Iterator<Item = Self> {
        Self::ALL
            .iter()
            .copied()
            .filter(|format| *format != Self::Pattern)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::format::{Field, Parser, detect, envelope_of};

    #[test]
    fn each_example_is_recognized_and_names_its_client() {
        let hints = Hints {
            year: Some(2024),
            ..Hints::default()
        };
        for format in Format::that_have_names() {
            let Entry {
                name,
                detection,
                example,
                ..
            } = format.entry();
            let found = detect(example.as_bytes(), &hints).map(|(_, format)| format);
            match (format, detection) {
                (Format::Common, _) => assert_eq!(found, Some(Format::Common)),
                (_, Lines | Header(_)) => assert_eq!(found, Some(format), "{name}"),
                (_, Never) => assert_ne!(found, Some(format), "{name}"),
            }
            let envelope = envelope_of(example.as_bytes(), format, &hints);
            let mut parser = Parser::new((envelope, format), &hints, UNIX_EPOCH);
            let record = example.lines().filter_map(|line| {
                parser.parse(line.as_bytes()).ok()?.map(|r| {
                    String::from_utf8_lossy(&r.get(&Field::Client).unwrap_or_default()).into_owned()
                })
            });
            let client = record.last().unwrap_or_default();
            assert!(
                client.starts_with("192.0.2.") || client == "ann",
                "{name}: {client:?}"
            );
        }
    }

    #[test]
    fn every_format_is_documented() {
        let page = include_str!("../../../../docs/replay.md");
        for format in Format::that_have_names() {
            assert!(
                page.contains(&format!("`{}`", format.name())),
                "docs/replay.md: {}",
                format.name()
            );
        }
    }

    #[test]
    fn names_are_unique() {
        let entries = || Format::that_have_names().map(Format::entry);
        let mut names: Vec<&str> = entries()
            .flat_map(|e| e.products.iter().copied().chain([e.name]))
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
