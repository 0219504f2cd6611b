//! The log formats of mail servers: Exim's main log and Postfix's syslog messages.
//!
//! A request is an accepted message, a refused message, or a failed login:
//!
//! - Exim: `2024-01-01 12:00:00 1rK2aB-0001Xy-2Z <= ann@example.org H=mx.example.org (helo)
//!   [192.0.2.7] P=esmtps S=1234`, `… H=(helo) [192.0.2.7] F=<…> rejected RCPT <…>: …`, `… login
//!   authenticator failed for (helo) [192.0.2.7]: 535 …`
//! - Postfix: `Jan  1 12:00:00 mx postfix/smtpd[7]: 4XyZ: client=mx.example.org[192.0.2.7]`,
//!   `… NOQUEUE: reject: RCPT from unknown[192.0.2.7]: 554 …`, `… warning: unknown[192.0.2.7]: SASL
//!   LOGIN authentication failed: …`
//!
//! Every expression matches from the start of the line to the address that the server itself
//! wrote, so that an address which the client sends in HELO or as a sender is never used. No other
//! address may follow before the word that says what happened, except in the sender.

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

#[cfg(test)]
mod tests {
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
