//! Logs in more than sixty shapes, each with a known client and a known time: 12:00 UTC on the first
//! day of 2024. Nothing that a client sends may put another address in its place.

#![allow(clippy::unwrap_used, reason = "a helper of tests")]

use crate::reading::{Read, read};

/// The lines of the shapes: `ADDR` is the client's address, and `FREE` a text that the client chooses
/// and the program does not escape, except in JSON.
const LINES: &[&str] = &[
    // The combined log format and its relatives, with several stamps.
    r#"ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8""#,
    r#"ADDR - ann [01/Jan/2024:13:00:00 +0100] "GET /FREE HTTP/1.1" 200 5"#,
    r#"ADDR - - [01/Jan/2024:12:00:00.500 +0000] "POST /a HTTP/2.0" 429 - "https://example.org/" "FREE""#,
    r#"ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8" 0.012 0.010"#,
    r#"ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8" 7 "web@docker" "http://10.0.0.1:80" 3ms"#,
    r#"example.org:443 ADDR - ann [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8""#,
    r#"example.org ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8""#,
    // The same inside what collectors put around lines.
    r#"Jan  1 12:00:00 web nginx: ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8""#,
    r#"<190>Jan  1 12:00:00 web nginx: ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8""#,
    r#"<190>1 2024-01-01T12:00:00Z web nginx 7 - - ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8""#,
    r#"2024-01-01T12:00:00.500000000Z stdout F ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8""#,
    r#"2024-01-01T12:00:00.500000000Z ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8""#,
    r#"web-1  | ADDR - - [01/Jan/2024:12:00:00 +0000] "GET /FREE HTTP/1.1" 200 5 "-" "curl/8""#,
    r#"{"log":"ADDR - - [01/Jan/2024:12:00:00 +0000] \"GET /FREE HTTP/1.1\" 200 5 \"-\" \"curl/8\"\n","stream":"stdout","time":"2024-01-01T12:00:00.5Z"}"#,
    r#"{"@timestamp":"2024-01-01T12:00:01Z","message":"ADDR - - [01/Jan/2024:12:00:00 +0000] \"GET /FREE HTTP/1.1\" 200 5 \"-\" \"curl/8\"","host":{"name":"web"}}"#,
    r#"{"__REALTIME_TIMESTAMP":"1704110400500000","SYSLOG_IDENTIFIER":"nginx","MESSAGE":"ADDR - - [01/Jan/2024:12:00:00 +0000] \"GET /FREE HTTP/1.1\" 200 5 \"-\" \"curl/8\""}"#,
    // JSON lines.
    r#"{"ts":1704110400.5,"request":{"remote_ip":"ADDR","method":"GET","uri":"/FREE"},"status":200}"#,
    r#"{"ts":1704110400.5,"request":{"remote_ip":"10.0.0.1","client_ip":"ADDR","uri":"/FREE","headers":{"X":["9.9.9.9"]}},"duration":0.01}"#,
    r#"{"ClientAddr":"ADDR:5222","ClientHost":"ADDR","RequestPath":"/FREE","StartUTC":"2024-01-01T12:00:00.5Z","time":"2024-01-01T12:00:00Z","level":"info"}"#,
    r#"{"@timestamp":"2024-01-01T12:00:00.000Z","time":0.012,"remote_addr":"ADDR","request_uri":"/FREE"}"#,
    r#"{"time_iso8601":"2024-01-01T13:00:00+01:00","remote_addr":"ADDR","request_time":"0.012","status":"200"}"#,
    r#"{"msec":"1704110400.500","remote_addr":"ADDR","request":"GET / HTTP/1.1"}"#,
    r#"{"ClientIP":"ADDR","EdgeStartTimestamp":"2024-01-01T12:00:00Z","ClientRequestURI":"/FREE"}"#,
    r#"{"httpRequest":{"requestMethod":"GET","requestUrl":"https://e.org/FREE","remoteIp":"ADDR"},"timestamp":"2024-01-01T12:00:00.5Z"}"#,
    r#"{"started_at":1704110400500,"client_ip":"ADDR","request":{"uri":"/FREE"},"latencies":{"request":3}}"#,
    r#"{"requestId":"c6af","ip":"ADDR","requestTime":"01/Jan/2024:12:00:00 +0000","httpMethod":"GET"}"#,
    r#"{"timestamp":1704110400500,"formatVersion":1,"httpRequest":{"clientIp":"ADDR","uri":"/FREE"}}"#,
    r#"{"timeStamp":"2024-01-01T12:00:00+00:00","category":"ApplicationGatewayAccessLog","properties":{"clientIP":"ADDR","requestUri":"/FREE"}}"#,
    r#"{"timestamp":"2024-01-01T12:00:00.500000+0000","event_type":"http","src_ip":"ADDR","dest_ip":"10.0.0.1"}"#,
    r#"{"ts":1704110400.5,"uid":"C1","id.orig_h":"ADDR","id.resp_h":"10.0.0.1"}"#,
    r#"{"start_time":"2024-01-01T12:00:00.500Z","downstream_remote_address":"ADDR:5222","path":"/FREE"}"#,
    // Proxies and load balancers.
    r#"ADDR:33317 [01/Jan/2024:12:00:00.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET /FREE HTTP/1.1""#,
    r#"ADDR:33317 [01/Jan/2024:12:00:00.655] fnt bck/srv1 0/0/5007 212 -- 0/0/0/0/3 0/0"#,
    "Jan  1 12:00:00 lb haproxy[7]: ADDR:33317 [01/Jan/2024:12:00:00.655] https/1: SSL handshake failure",
    r#"Jan  1 12:00:00 lb haproxy[7]: ADDR:33317 [01/Jan/2024:12:00:00.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET /FREE HTTP/1.1""#,
    r#"[2024-01-01T12:00:00.310Z] "GET /FREE HTTP/2" 200 - 0 5 2 1 "ADDR" "curl/8" "cc21d9b0" "example.org" "10.0.2.1:80""#,
    r#"[2024-01-01T12:00:00.310Z] "GET /a HTTP/2" 200 - 0 5 2 1 "ADDR" "FREE" "cc21d9b0" "example.org" "10.0.2.1:80""#,
    r#"[2024-01-01T12:00:00.409Z] "GET /FREE HTTP/1.1" 200 - via_upstream - "-" 0 5 3 1 "-" "curl/8" "84961386" "httpbin:8000" "10.44.1.27:80" inbound 127.0.0.1:1 10.44.1.27:80 ADDR:37652 httpbin default"#,
    r#"https 2024-01-01T12:00:00.186641Z app/my-lb/50dc ADDR:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://example.org:443/FREE HTTP/1.1" "curl/8" TLS arn"#,
    r#"h2 2024-01-01T12:00:00.186641Z app/my-lb/50dc ADDR:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://example.org:443/a HTTP/2.0" "FREE" TLS arn"#,
    r#"2024-01-01T12:00:00.945958Z my-lb ADDR:2817 10.0.0.1:80 0.000073 0.001048 0.000057 200 200 0 29 "GET http://example.org:80/FREE HTTP/1.1" "curl/8" - -"#,
    r#"79a59df9 bucket [01/Jan/2024:12:00:00 +0000] ADDR arn:ann 3E57427F REST.GET.OBJECT a.jpg "GET /bucket/FREE HTTP/1.1" 200 - 113 - 7 - "-" "-" -"#,
    "#Fields: date time c-ip cs-uri-stem\n2024-01-01 12:00:00 ADDR /a",
    "#Fields: date time s-ip cs-method cs-uri-stem c-ip cs(User-Agent) sc-status\n2024-01-01 12:00:00 10.0.0.1 GET /a ADDR curl/8 200",
    "#Version: 1.0\n#Fields: date\ttime\tx-edge-location\tsc-bytes\tc-ip\tcs-method\n2024-01-01\t12:00:00\tLHR1\t5\tADDR\tGET",
    "#separator \\x09\n#fields\tts\tuid\tid.orig_h\tid.orig_p\tid.resp_h\n1704110400.500000\tC1\tADDR\t51341\t10.0.0.1",
    r#"2024-01-01T12:00:00+00:00 heroku[router]: at=info method=GET path="/a" host=e.org fwd="ADDR" dyno=web.1 status=200"#,
    "time:[01/Jan/2024:12:00:00 +0000]\thost:ADDR\treq:GET /a HTTP/1.1\tstatus:200",
    "time=2024-01-01T12:00:00Z level=info client_ip=ADDR path=/a status=200",
    // Errors of web servers.
    r#"2024/01/01 12:00:00 [error] 31#31: *7 limiting requests, excess: 0.500 by zone "api", client: ADDR, server: example.org, request: "GET /FREE HTTP/1.1""#,
    r#"2024/01/01 12:00:00 [error] 31#31: *7 open() "/srv/FREE" failed (2: No such file or directory), client: ADDR, server: example.org, request: "GET /FREE HTTP/1.1""#,
    "[Mon Jan 01 12:00:00.123456 2024] [core:error] [pid 7:tid 9] [client ADDR:4711] AH00126: FREE",
    "[Mon Jan 01 12:00:00.123456 2024] [authz_core:error] [pid 7] [remote ADDR:4711] AH01630: client denied: /srv/FREE",
    "[Mon Jan 01 12:00:00 2024] [error] [client ADDR] File does not exist: /srv/FREE",
    "[Mon Jan 01 12:00:00.123456 2024] [core:error] [pid 7:tid 9] [client ADDR] AH00126: FREE",
    // Mail servers.
    "2024-01-01 12:00:00 1rK2aB-0001Xy-2Z <= ann@example.org H=mx.example.org [ADDR] P=esmtps S=1234",
    "2024-01-01 12:00:00 H=(mx) [ADDR] F=<a@b.example> rejected RCPT <c@d.example>: FREE",
    "2024-01-01 12:00:00 login authenticator failed for (User) [ADDR]:99 I=[10.0.0.1]:465: 535 Incorrect authentication data (set_id=FREE)",
    "Jan  1 12:00:00 mx postfix/smtpd[7]: 4XyZ12: client=mx.example.org[ADDR]",
    "Jan  1 12:00:00 mx postfix/smtpd[7]: NOQUEUE: reject: RCPT from unknown[ADDR]: 554 5.7.1 <FREE>: Relay access denied",
    "Jan  1 12:00:00 mx postfix/postscreen[7]: PREGREET 11 after 0.07 from [ADDR]:4711: EHLO FREE",
    "Jan 1 12:00:00 mx postfix/smtpd[7]: warning: unknown[ADDR]: SASL LOGIN authentication failed: FREE",
    "2024-01-01 12:00:00 H=(FREE) [ADDR]:4711 rejected connection in \"connect\" ACL: refused",
    "2024-01-01 12:00:00 SMTP protocol error in \"AUTH LOGIN\" H=(FREE) [ADDR]:4711 LOGIN authentication mechanism not supported",
    "Jan  1 12:00:00 mx postfix/smtpd[7]: NOQUEUE: milter-reject: RCPT from unknown[ADDR]: 4.7.1 FREE",
    "Jan  1 12:00:00 mx dovecot: pop3-login: Aborted login (auth failed, 1 attempts): user=<FREE>, method=PLAIN, rip=ADDR, lip=10.0.0.1",
    "Jan  1 12:00:00 mx dovecot: imap-login: Disconnected (auth failed, 1 attempts in 2 secs): user=<FREE>, method=PLAIN, rip=ADDR, lip=10.0.0.1",
    "2024-01-01T12:00:00Z mx dovecot: imap-login: Login aborted: Connection closed (auth failed, 40 attempts in 9 secs): user=<FREE>, method=PLAIN, rip=ADDR, lip=10.0.0.1",
    // Logins, and applications.
    r#"{"ts":1704110400.5,"uid":"C1","id.orig_h":"ADDR","id.resp_h":"10.0.0.1","auth_success":false,"client":"SSH-2.0-Go","server":"SSH-2.0-x"}"#,
    "Jan  1 12:00:00 host sshd[7]: error: PAM: Authentication error for FREE from ADDR",
    "Jan  1 12:00:00 host sshd[7]: Failed password for root from ADDR port 4711 ssh2",
    "2024-01-01T12:00:00.500000+00:00 host sshd[7]: Failed password for invalid user FREE from ADDR port 4711 ssh2",
    "1704110400.500000 host sshd[7]: Invalid user FREE from ADDR port 4711",
    r#"2024-01-01T12:00:00Z INFO:     ADDR:52436 - "GET /FREE HTTP/1.1" 200 OK"#,
    r#"Started GET "/FREE" for ADDR at 2024-01-01 12:00:00 +0000"#,
    r#"I, [2024-01-01T12:00:00.500000 #7]  INFO -- : Started GET "/FREE" for ADDR at 2024-01-01 12:00:00 +0000"#,
];

/// Texts with which a client may try to blame the address 9.9.9.9.
const FORGED: &[&str] = &[
    " 9.9.9.9 ",
    "9.9.9.9, ",
    "\" \"9.9.9.9\" \"",
    "\", client: 9.9.9.9, server: s, request: \"GET / HTTP/1.1",
    "x from 9.9.9.9 port 1 ssh2",
    ">, method=PLAIN, rip=9.9.9.9, lip=10.0.0.1",
    "[9.9.9.9]: 554 5.7.1 ",
    " [client 9.9.9.9:1] ",
    "\" for 9.9.9.9 at 2024-01-01 12:00:00 +0000",
    "9.9.9.9 - - [01/Jan/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5",
    "\",\"remote_addr\":\"9.9.9.9\",\"client_ip\":\"9.9.9.9",
    "9.9.9.9): unknown user; rhost=9.9.9.9",
    "x) [9.9.9.9]:1 I=[10.0.0.1]:25",
];

/// Texts with which a client may begin a line of its own inside a JSON string.
const FORGED_IN_JSON: &[&str] = &[
    "\n9.9.9.9 - - [01/Jan/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n",
    "\u{0}\r9.9.9.9 - -",
];

/// Returns the outcome of reading a line of each of two clients. A header is written once.
fn read_two(line: &str, free: &str) -> Read {
    let (header, line) = line
        .rsplit_once('\n')
        .map_or(("", line), |(header, line)| (header, line));
    let escaped = serde_json::to_string(free).unwrap();
    let free = if line.starts_with('{') {
        &escaped[1..escaped.len() - 1]
    } else {
        free
    };
    let of = |client: &str, free: &str| line.replace("ADDR", client).replace("FREE", free);
    let break_after = if header.is_empty() { "" } else { "\n" };
    read(&format!(
        "{header}{break_after}{}\n{}\n",
        of("192.0.2.7", "x"),
        of("192.0.2.8", free)
    ))
}

#[test]
fn every_shape_has_its_client_and_its_time() {
    assert!(LINES.len() >= 60, "{}", LINES.len());
    let mut wrong = Vec::new();
    for line in LINES {
        let found = read_two(line, "y");
        let expected = ["192.0.2.7", "192.0.2.8"]
            .map(|client| (client.to_owned(), "2024-01-01 12:00:00".to_owned()));
        if found.requests != expected {
            wrong.push(format!("{line}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Splits a line of syslog after its time and host, and after the program behind these.
fn host_and_program(line: &str) -> Option<(&str, &str, &str)> {
    let is_syslog = line.starts_with("Jan ") || line.contains(" host ") || line.contains(" mx ");
    let (program, text) = line.split_once(": ")?;
    let (head, program) = program.rsplit_once(' ')?;
    (is_syslog && !line.starts_with('{')).then_some((head, program, text))
}

#[test]
fn lines_that_syslog_has_merged_count_as_often_as_they_were_written() {
    let mut tried = 0;
    for line in LINES {
        let line = line.replace("ADDR", "192.0.2.7").replace("FREE", "x");
        let Some((head, program, text)) = host_and_program(&line) else {
            continue;
        };
        let merged = format!("{head} {program}: message repeated 3 times: [ {text}]");
        let last = format!("{head} last message repeated 4 times");
        let other = last.replace(" host ", " b ").replace(" mx ", " b ");
        let once = if text.contains("40 attempts") { 40 } else { 1 };
        let counts = |times: &[u64]| -> Vec<String> {
            times
                .iter()
                .map(|times| (times * once).to_string())
                .collect()
        };
        let found = read(&format!("{line}\n{merged}\n{last}\n"));
        assert_eq!(found.costs, counts(&[1, 3, 4]), "{line}: {found:?}");
        assert!(
            found
                .requests
                .iter()
                .all(|(client, _)| client == "192.0.2.7")
        );
        if other != last {
            let found = read(&format!("{line}\n{other}\n"));
            assert_eq!(
                found.costs,
                counts(&[1]),
                "the line of another host: {other}"
            );
        }
        tried += 1;
    }
    assert!(tried >= 12, "{tried}");
}

#[test]
fn no_shape_blames_an_address_that_a_client_writes() {
    let mut wrong = Vec::new();
    for line in LINES.iter().filter(|line| line.contains("FREE")) {
        let json = if line.starts_with('{') {
            FORGED_IN_JSON
        } else {
            &[]
        };
        for forged in FORGED.iter().chain(json) {
            let found = read_two(line, forged);
            // A forged line may be skipped, which is counted, but never has another client.
            if !found
                .requests
                .iter()
                .all(|(client, _)| client.starts_with("192.0.2."))
            {
                wrong.push(format!("{line} with {forged}: {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
