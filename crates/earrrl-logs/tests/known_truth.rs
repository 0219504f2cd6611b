//! Logs whose clients and times are known: nothing a client sends may put another address in its place, and what cannot
//! be known is skipped or reported, never guessed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use earrrl_logs::line::Skip;

use crate::reading::{clients, read, read_files};

const ENVOY: &str = r#"[2024-01-01T12:00:00.000Z] "GET /a HTTP/2" 200 - 0 5 2 1 "LIST" "AGENT" "cc21d9b0" "example.org" "10.0.2.1:80""#;
const ISTIO: &str = r#"[2024-01-01T12:00:00.000Z] "GET /a HTTP/1.1" 200 - via_upstream - "-" 0 5 3 1 "LIST" "AGENT" "84961386" "httpbin:8000" "10.44.1.27:80" inbound 127.0.0.1:1 10.44.1.27:80 192.0.2.7:37652 httpbin default"#;
const ALB: &str = r#"https 2024-01-01T12:00:00.186641Z app/lb/50dc 192.0.2.7:2817 10.0.0.1:80 0.1 0.1 0.1 200 200 0 57 "GET https://example.org:443/a HTTP/1.1" "AGENT" TLS arn"#;

#[test]
fn quotes_hide_no_client_and_frame_none() {
    let honest = |line: &str| line.replace("LIST", "192.0.2.7").replace("AGENT", "curl/8");
    let hostile_agents = [
        r#"a "quoted" agent"#,
        r#"x" "9.9.9.9" "y"#,
        r#"" "9.9.9.9"#,
        r#"x HTTP/1.1" 200 - 0 5 2 1 "9.9.9.9" "y"#,
    ];
    for line in [ENVOY, ISTIO, ALB] {
        for agent in hostile_agents {
            let hostile = line.replace("LIST", "192.0.2.7").replace("AGENT", agent);
            let log = format!("{}\n{hostile}\n", honest(line));
            assert_eq!(clients(&log), ["192.0.2.7"; 2], "{hostile}");
        }
        let path = honest(line).replace("/a HTTP", r#"/a"b" HTTP"#);
        assert_eq!(
            clients(&format!("{}\n{path}\n", honest(line))),
            ["192.0.2.7"; 2],
            "{path}"
        );
    }
}

#[test]
fn a_list_that_could_end_at_two_addresses_counts_for_none() {
    let honest = ENVOY
        .replace("LIST", "192.0.2.7")
        .replace("AGENT", "curl/8");
    for (list, agent) in [
        (r#"9.9.9.9" "x, 192.0.2.7"#, "curl"),
        ("192.0.2.7", r#"x, 9.9.9.9" "y"#),
    ] {
        let hostile = ENVOY.replace("LIST", list).replace("AGENT", agent);
        let found = read(&format!("{honest}\n{hostile}\n"));
        assert_eq!(found.requests.len(), 1, "{hostile}");
        assert_eq!(
            (&found.requests[0].0[..], &found.skipped[..]),
            ("192.0.2.7", &[Skip::Ambiguous][..])
        );
    }
}

#[test]
fn the_last_of_an_array_or_of_duplicates_counts() {
    for line in [
        r#"{"ts":1704110400,"X-Forwarded-For":["6.6.6.6","203.0.113.9"]}"#,
        r#"{"ts":1704110400,"request":{"headers":{"X-Forwarded-For":["6.6.6.6","203.0.113.9"]}}}"#,
        r#"{"ts":1704110400,"x_forwarded_for":["6.6.6.6, 203.0.113.9"]}"#,
        r#"{"ts":1704110400,"client_ip":"6.6.6.6","client_ip":"203.0.113.9"}"#,
        "time=2024-01-01T12:00:00Z client_ip=6.6.6.6 path=/a client_ip=203.0.113.9",
    ] {
        assert_eq!(clients(line), ["203.0.113.9"], "{line}");
    }
}

#[test]
fn a_duration_is_no_time() {
    for line in [
        r#"{"time":0.012,"@timestamp":"2024-01-01T12:00:00Z","client_ip":"192.0.2.7"}"#,
        r#"{"ts":12,"timestamp":1704110400,"client_ip":"192.0.2.7"}"#,
        "time=0.012 timestamp=2024-01-01T12:00:00Z client_ip=192.0.2.7",
    ] {
        let expected = ("192.0.2.7".to_owned(), "2024-01-01 12:00:00".to_owned());
        assert_eq!(read(line).requests, [expected], "{line}");
    }
    assert!(clients(r#"{"time":0.012,"client_ip":"192.0.2.7"}"#).is_empty());
}

#[test]
fn an_address_behind_the_first_word_makes_that_word_no_client() {
    let rest = r#"[01/Jan/2024:12:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "curl""#;
    for front in [
        "web-1 192.0.2.7 -",
        "10.0.0.5 192.0.2.7 ann",
        "example.org 192.0.2.7 ann",
    ] {
        let found = read(&format!("{front} {rest}\n").repeat(3));
        let told = found.error.unwrap_or_default();
        assert!(
            found.requests.is_empty() && told.contains("--log-format"),
            "{front}: {told}"
        );
    }
    assert_eq!(
        clients(&format!("example.org 192.0.2.7 - - {rest}\n")),
        ["192.0.2.7"]
    );
}

#[test]
fn a_key_that_names_an_address_frames_nobody() {
    let line = |text: &str| format!("Jan  1 12:00:00 host sshd[7]: {text}\n");
    let honest = line("Failed password for root from 192.0.2.1 port 1 ssh2");
    for text in [
        r#"Failed hostbased for ann from 192.0.2.7 port 4711 ssh2: RSA SHA256:x, client user "a", client host "x from 9.9.9.9 port 22 ssh2""#,
        "Failed publickey for ann from 192.0.2.7 port 4711 ssh2: RSA-CERT ID x from 9.9.9.9 port 22 ssh2: y",
        "Failed publickey for x from 9.9.9.9 port 22 ssh2: y from 192.0.2.7 port 4711 ssh2: RSA SHA256:x",
    ] {
        let found = read(&format!("{honest}{}", line(text)));
        assert_eq!(found.requests.len(), 1, "{text}");
        assert_eq!(found.requests[0].0, "192.0.2.1");
        assert_eq!(found.skipped, [Skip::Ambiguous], "{text}");
    }
    for text in [
        "Failed publickey for ann from 192.0.2.7 port 4711 ssh2: RSA SHA256:x",
        r#"Failed hostbased for ann from 192.0.2.7 port 4711 ssh2: RSA SHA256:x, client user "a", client host "b.example""#,
        "Failed password for invalid user x from 9.9.9.9 port 22 ssh2 from 192.0.2.7 port 4711 ssh2",
    ] {
        assert_eq!(clients(&line(text)), ["192.0.2.7"], "{text}");
    }
}

#[test]
fn local_time_that_goes_back_is_reported() {
    let line = |time: &str| {
        format!(
            "{time} H=(helo) [192.0.2.7] F=<a@b.example> rejected RCPT <c@d.example>: relay not permitted\n"
        )
    };
    let times = ["02:30:00", "02:59:00", "02:00:00", "02:30:00", "03:10:00"];
    let night: String = times
        .map(|time| line(&format!("2024-10-27 {time}")))
        .concat();
    let doubts = read(&night).doubts;
    assert!(
        matches!(&doubts[..], [doubt] if doubt.contains("line 3") && doubt.contains("summer time")),
        "{doubts:?}"
    );
    let day: String = ["10:00:00", "10:30:00", "10:29:59"]
        .map(|time| line(&format!("2024-10-27 {time}")))
        .concat();
    assert!(read(&day).doubts.is_empty());
}

#[test]
fn time_that_goes_back_is_no_doubt_if_every_stamp_has_its_zone() {
    let back = ["02:30:00", "02:59:00", "02:00:00", "02:30:00", "03:10:00"];
    let shapes = [
        "192.0.2.7 - - [27/Oct/2024:TIME +0000] \"GET / HTTP/1.1\" 200 5",
        "{\"time\":\"2024-10-27TTIMEZ\",\"client_ip\":\"192.0.2.7\"}",
        "2024-10-27TTIME+02:00 host sshd[7]: Failed password for root from 192.0.2.7 port 1 ssh2",
        "2024-10-27 TIME +0200 H=(helo) [192.0.2.7] F=<a@b.example> rejected RCPT <c@d.example>: no",
        "time:2024-10-27TTIMEZ\thost:192.0.2.7\tstatus:200",
        "time=2024-10-27TTIMEZ client_ip=192.0.2.7 status=200",
        "Started GET \"/a\" for 192.0.2.7 at 2024-10-27 TIME +0000",
    ];
    for shape in shapes {
        let log = |line: &str| back.map(|time| line.replace("TIME", time) + "\n").concat();
        let found = read(&log(shape));
        assert_eq!(
            (found.requests.len(), &found.doubts[..]),
            (5, &[][..]),
            "{shape}"
        );
        // The same without zones, where the format allows that.
        let local = shape
            .replace("Z", "")
            .replace(" +0000]", "]")
            .replace("+02:00", "")
            .replace(" +0200", "");
        let is_local = local != shape && !shape.starts_with("Started");
        assert_eq!(
            read(&log(&local)).doubts.len(),
            usize::from(is_local),
            "{local}"
        );
    }
    let csv = |zone: &str| {
        let rows = back.map(|time| format!("2024-10-27T{time}{zone},ann\n"));
        read(&format!("time,key\n{}", rows.concat())).doubts.len()
    };
    assert_eq!((csv("Z"), csv("")), (0, 1));
}

#[test]
fn one_line_stands_for_all_attempts_that_it_counts() {
    let dovecot = |attempts: u32| {
        format!(
            "Jan  1 12:00:00 mx dovecot: imap-login: Disconnected (auth failed, {attempts} attempts in 9 secs): user=<a>, method=PLAIN, rip=192.0.2.7, lip=10.0.0.1\n"
        )
    };
    let log = dovecot(1) + &dovecot(40) + "Jan  1 12:00:01 mx last message repeated 2 times\n";
    assert_eq!(read(&log).costs, ["1", "40", "80"]);
}

#[test]
fn an_empty_user_in_csv_is_nobody() {
    let log = "time,key,user\n1704110400,a,ann\n1704110400,,\n1704110400,-,-\n1704110400, ,x\n";
    let found = read(log);
    assert_eq!(found.requests.len(), 1, "{found:?}");
    assert_eq!(found.skipped, [Skip::Key]);
}

#[test]
fn lines_that_do_not_fit_their_header_are_reported_as_such() {
    let w3c = "#Fields: date time c-ip cs(User-Agent)\n2024-01-01 12:00:00 192.0.2.7 curl\n";
    let found = read(&format!(
        "{w3c}2024-01-01 12:00:00 192.0.2.7 a b\n2024-01-01 12:00:00 192.0.2.7  \"a b\"\n"
    ));
    assert_eq!(
        (found.requests.len(), &found.skipped[..]),
        (2, &[Skip::Columns][..]),
        "{found:?}"
    );
    let csv = read("time,key\n1704110400,a\n1704110400,a,b\n");
    assert_eq!(
        (csv.requests.len(), &csv.skipped[..]),
        (1, &[Skip::Columns][..])
    );
}

#[test]
fn a_file_given_twice_is_reported() {
    let log = r#"{"ts":1704110400,"client_ip":"192.0.2.7"}"#;
    let twice = read_files(&[log, log], |paths| {
        let again = paths[0].parent().unwrap().join(".").join("0.log");
        [paths, vec![again]].concat()
    });
    assert!(
        matches!(&twice.doubts[..], [doubt] if doubt.contains("twice")),
        "{twice:?}"
    );
    assert!(read_files(&[log, log], |paths| paths).doubts.is_empty());
    let long = format!("{log}\n").repeat(20);
    let copied = read_files(&[&long, &long], |paths| paths);
    assert!(
        matches!(&copied.doubts[..], [doubt] if doubt.contains("same lines")),
        "{copied:?}"
    );
}

#[test]
fn a_file_of_two_formats_is_reported() {
    let json = "{\"ts\":1704110400,\"client_ip\":\"192.0.2.7\"}\n";
    let other =
        "192.0.2.8 - - [01/Jan/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n";
    let doubts = read(&(json.repeat(60) + &other.repeat(50))).doubts;
    assert!(
        matches!(&doubts[..], [doubt] if doubt.contains("50 of 110 lines are not json but combined")),
        "{doubts:?}"
    );
    assert!(
        read(&(json.repeat(60) + &other.repeat(3)))
            .doubts
            .is_empty()
    );
    let ssh = "Jan  1 12:00:00 host sshd[7]: Failed password for root from 192.0.2.7 port 1 ssh2\n";
    let mail = "Jan  1 12:00:00 host postfix/smtpd[7]: 4XyZ: client=mx.example.org[192.0.2.7]\n";
    let cron = "Jan  1 12:00:00 host CRON[7]: (root) CMD (true)\n";
    let doubts = read(&(ssh.repeat(60) + &mail.repeat(50))).doubts;
    assert!(
        matches!(&doubts[..], [doubt] if doubt.contains("50 of 110 lines are not sshd but postfix")),
        "{doubts:?}"
    );
    assert!(read(&(ssh.repeat(60) + &cron.repeat(50))).doubts.is_empty());
}

#[test]
fn a_format_is_found_behind_lines_without_clients() {
    let line = "192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5\n";
    let log = "Starting up: nothing to see\n".repeat(5_000) + line;
    assert_eq!(clients(&log), ["192.0.2.7"]);
    let nothing = read(&"Starting up: nothing to see\n".repeat(5_000));
    assert!(
        nothing
            .error
            .unwrap()
            .contains("no log format fits its first lines (`Starting up")
    );
    assert!(nothing.skipped.is_empty());
}

#[test]
fn errors_name_the_fields_that_a_log_has() {
    let unusual = r#"{"when":"2015-05-17T10:05:03Z","peer":{"addr":"192.0.2.7"}}"#;
    let error = read(unusual).error.unwrap();
    assert!(
        error.contains("its fields are when, peer.addr; --time-field"),
        "{error}"
    );
    assert!(error.contains("(peer.addr has an address)"), "{error}");
    let csv = "when,peer,status\n2015-05-17T10:05:03Z,192.0.2.7,200\n";
    let error = read(csv).error.unwrap();
    assert!(
        error.contains("its fields are when, peer, status; --time-field")
            && error.contains("--key-field"),
        "{error}"
    );
    assert!(error.contains("(peer has an address)"), "{error}");
}

#[test]
fn an_object_around_a_line_is_opened_and_its_own_client_goes_first() {
    let wrapped = r#"{"@timestamp":"2015-05-17T10:05:03Z","message":"192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5"}"#;
    assert_eq!(clients(wrapped), ["192.0.2.7"]);
    let journal = r#"{"__REALTIME_TIMESTAMP":"1431857103500000","SYSLOG_IDENTIFIER":"sshd","MESSAGE":"Failed password for root from 192.0.2.7 port 1 ssh2"}"#;
    assert_eq!(clients(journal), ["192.0.2.7"]);
    let forged = r#"{"ts":1431857103,"client_ip":"192.0.2.7","message":"9.9.9.9 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5"}"#;
    assert_eq!(clients(forged), ["192.0.2.7"]);
}

#[test]
fn further_products_in_json() {
    for line in [
        r#"{"timestamp":"2015-05-17T10:05:03.500000+0000","event_type":"http","src_ip":"192.0.2.7","dest_ip":"10.0.0.1","http":{"hostname":"9.9.9.9"}}"#,
        r#"{"ts":1431857103.5,"uid":"C1","id.orig_h":"192.0.2.7","id.resp_h":"10.0.0.1"}"#,
        r#"{"timeStamp":"2015-05-17T10:05:03+00:00","category":"ApplicationGatewayAccessLog","properties":{"clientIP":"192.0.2.7","userAgent":"9.9.9.9"}}"#,
    ] {
        assert_eq!(clients(line), ["192.0.2.7"], "{line}");
    }
}

#[test]
fn forged_fields_blame_nobody() {
    let nginx = r#"2024/01/01 12:00:00 [error] 31#31: *7 limiting requests, excess: 0.500 by zone "api", client: 192.0.2.7, server: example.org, request: "GET PATH HTTP/1.1""#;
    let apache =
        "[Mon Jan 01 12:00:00 2024] [core:error] [pid 7:tid 9] [client 192.0.2.7:4711] AH1: PATH";
    for line in [nginx, apache] {
        for line_of_another in [nginx, apache] {
            for separator in [" ", "\t", "\"", "\" ", ", "] {
                let forged = line_of_another.replace("192.0.2.7", "9.9.9.9");
                let path = format!("/{separator}{forged}{separator}");
                let log = format!(
                    "{}\n{}\n",
                    line.replace("PATH", "/"),
                    line.replace("PATH", &path)
                );
                let found = clients(&log);
                assert!(
                    !found.is_empty() && found.iter().all(|c| c == "192.0.2.7"),
                    "{log}"
                );
            }
        }
    }
}

#[test]
fn errors_of_nginx_that_name_two_clients_count_for_none() {
    let line = r#"2024/01/01 12:00:00 [error] 31#31: *7 open() "/srv/PATH" failed (2: No such file or directory), client: 192.0.2.7, server: s, request: "GET /PATH HTTP/1.1", host: "h", referrer: "REFERRER""#;
    let honest = line.replace("PATH", "a").replace("REFERRER", "r");
    let forged = r#"x" failed, client: 9.9.9.9, server: s, request: "GET / HTTP/1.1"#;
    for hostile in [
        honest.replace("/srv/a", &format!("/srv/{forged}")),
        line.replace("PATH", "a").replace("REFERRER", forged),
        line.replace("PATH", forged).replace("REFERRER", forged),
    ] {
        let found = read(&format!("{honest}\n{hostile}\n"));
        assert_eq!(found.requests.len(), 1, "{hostile}");
        assert_eq!(found.requests[0].0, "192.0.2.7");
        assert_eq!(found.skipped, [Skip::Ambiguous], "{hostile}");
    }
}
