//! Tests `earrrl suggest`, `earrrl simulate` and the report as a user runs them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use crate::command;
use crate::command::{earrrl, logs};

fn log() -> String {
    logs().join("access.log").to_str().unwrap().to_owned()
}

#[test]
fn the_report_stands_alone() {
    let hostile = "192.0.2.1 - <script>alert(1)</script> [14/Nov/2023:22:20:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(
        &path,
        hostile.repeat(50) + &fs::read_to_string(log()).unwrap(),
    )
    .unwrap();
    let path = path.to_str().unwrap();
    let rules = [
        "--rule",
        "recent-average 1/s half-life=10s",
        "--rule",
        "gcra 1/s burst=10",
    ];
    let arguments = [
        &["replay", path, "--output", "html", "--key", "user"],
        &rules[..],
    ]
    .concat();
    let page = earrrl(&arguments).out;
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script"));
    // The page must load nothing; its only address is the name of the SVG namespace.
    let addresses = page.matches("http").count();
    assert_eq!(
        addresses,
        page.matches("http://www.w3.org/2000/svg").count() + 1,
        "and http-equiv"
    );
    assert!(!page.contains("url(") && !page.contains("src="));
    // One client, two rules, and the peaks, each for wide pages and for phones.
    assert_eq!(page.matches("<svg").count(), 2 * 4);
    let long = fs::read_to_string(path)
        .unwrap()
        .replace("<script>", &"long".repeat(2000));
    fs::write(path, long).unwrap();
    assert!(
        earrrl(&arguments)
            .out
            .contains(&format!("<h3>{}…</h3>", "long".repeat(50)))
    );
    let sorted = earrrl(&[&arguments[..], &["--assume-sorted"]].concat());
    assert_eq!((sorted.code, sorted.err.lines().count()), (Some(2), 1));
    let hidden = earrrl(&[
        "replay",
        &log(),
        "--output",
        "html",
        "--anonymize",
        rules[0],
        rules[1],
    ]);
    assert!(hidden.out.contains("client-") && !hidden.out.contains("203.0.113"));
}

#[test]
fn the_report_says_when_and_how_much() {
    let rules = [
        "--rule",
        "recent-average 1/s half-life=10s",
        "--rule",
        "fixed-window 60/1m",
    ];
    let page = earrrl(&[&["replay", &log(), "--output", "html"], &rules[..]].concat()).out;
    let text = |text: &str| assert!(page.contains(text), "no `{text}`");
    // The distribution of peaks, with the limit of each rule.
    text("Clients by their peak rate");
    text("recent-average 1/s half-life=10s: 2 above");
    text("fixed-window 60/1m: 1 above");
    // The most denied client: the times of its denials, of its peak and of its requests.
    let page = page.replace("<time>", "").replace("</time>", "");
    let text = |text: &str| assert!(page.contains(text), "no `{text}`");
    text(
        "154 of 169 requests denied (91.1 %) by recent-average 1/s half-life=10s, 2023-11-14 22:20:01 to 2023-11-14",
    );
    text("Peak 6.28 a second, 6.28 times the limit, at 2023-11-14 22:20:20");
    text("First seen 2023-11-14 22:20:00, last seen 2023-11-14 22:20:21");
    text("<dt>paths</dt><dd>/login 100 %</dd>");
    // Ticks of the time axis in the panels of the incident.
    for tick in ["22:19:30", "22:20:05", "2023-11-14, UTC"] {
        assert!(page.contains(&format!("\n{tick}\n")), "no {tick}");
    }
    let panels = page.split("<section>").nth(1).unwrap();
    assert!(
        panels.contains("\n22:20:05\n")
            && !panels
                .split("</section>")
                .next()
                .unwrap()
                .contains("\n22:19:30\n")
    );
}

/// Returns a log in which `alike` clients of four networks ask for one path with one user agent, each 20 times at once,
/// and one client loses a few of its requests.
fn crowd(alike: usize) -> String {
    let line = |client: &str, path: &str, status: u16, agent: &str| {
        format!(
            "{client} - - [14/Nov/2023:22:20:00 +0000] \"GET {path} HTTP/1.1\" {status} 1 \"-\" \"{agent}\"\n"
        )
    };
    let mut log: String = (0..alike)
        .map(|n| line(&format!("203.0.{}.{n}", n % 4), "/login", 401, "bad <b>").repeat(20))
        .collect();
    log += &line("192.0.2.1", "/page", 200, "Firefox").repeat(12);
    log
}

#[test]
fn the_report_answers_in_order_and_joins_clients_that_are_alike() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a b.log");
    let report = |alike, further: &[&str]| {
        fs::write(&path, crowd(alike)).unwrap();
        let arguments = [
            "replay",
            path.to_str().unwrap(),
            "--rule",
            "gcra 1/s burst=10",
            "--output",
            "html",
        ];
        earrrl(&[&arguments, further].concat()).out
    };
    let page = report(11, &[]);
    let headings: Vec<&str> = page
        .split("<h2>")
        .skip(1)
        .map(|part| part.split("</h2>").next().unwrap())
        .collect();
    assert_eq!(
        headings,
        [
            "What happened",
            "Who it was",
            "What the rule would have done",
            "What it would have cost others",
            "What to do now",
        ]
    );
    let text = |text: &str| assert!(page.contains(text), "no `{text}` in {page}");
    text("<h3>11 clients alike</h3>\n<p>110 of 220 requests denied (50.0 %), ");
    text("<dt>statuses</dt><dd>401 100 %</dd>");
    text("<dd>bad &lt;b&gt; 100 %</dd>");
    text("203.0.0.0/24 (3)");
    text("and 6 more</dd>");
    // The client that is not of the group loses less than half.
    text("<td>0</td><td>1</td><td>2</td></tr>");
    text("<td>192.0.2.1</td><td>2</td><td>12</td>");
    text(env!("CARGO_PKG_VERSION"));
    text("--rule &#39;gcra 1/s burst=10&#39; --output html</code>");
    text("a b.log&#39; --rule &#39;gcra 1/s burst=10&#39; --output nginx-deny &gt; deny.conf");
    text("limit = &quot;gcra 1/s burst=10&quot;\nkey = [&quot;client&quot;]");
    let few = report(10, &[]);
    assert!(!few.contains("alike</h3>") && few.contains("<h3>203.0.1.5</h3>"));
    let hidden = report(11, &["--anonymize"]);
    assert!(hidden.contains("11 clients alike"));
    assert!(!hidden.contains("203.0.") && !hidden.contains("bad"));
}

#[test]
fn options_are_variables_too() {
    use std::process::Command;
    let run = |command: &str, variables: &[(&str, &str)], arguments: &[&str]| {
        let mut process = Command::new(env!("CARGO_BIN_EXE_earrrl"));
        process
            .arg(command)
            .args(arguments)
            .envs(variables.iter().copied());
        let output = process.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let rules = ("EARRRL_REPLAY_RULE", "fixed-window 60/1m;gcra 1/s burst=20");
    let (_, found, _) = run(
        "replay",
        &[rules, ("EARRRL_REPLAY_ANONYMIZE", "yes")],
        &[&log()],
    );
    assert!(
        found.contains("fixed-window 60/1m: most denied") && found.contains("gcra 1/s burst=20: ")
    );
    assert!(found.contains("client-") && !found.contains("203.0.113.99"));
    let half_life = [
        ("EARRRL_SUGGEST_HALF_LIFE", "1m"),
        ("EARRRL_SUGGEST_ANONYMIZE", "0"),
    ];
    let (_, found, _) = run("suggest", &half_life, &[&log()]);
    assert!(
        found.contains("half-life=1m strict") && found.contains("203.0.113.99"),
        "{found}"
    );
    let client = [("EARRRL_SIMULATE_CLIENT", "a steady 2/s;b steady 1/s")];
    let (_, found, _) = run("simulate", &client, &["--rule", "fixed-window 60/1m"]);
    assert_eq!(found.lines().count(), 3, "{found}");
    // These subcommands must ignore the environment variables of `earrrl serve`.
    let server = [
        ("EARRRL_CONFIG", "/nowhere"),
        ("EARRRL_RULE", "login=gcra 1/s burst=5"),
    ];
    let (code, _, err) = run("replay", &server, &[&log(), "--rule", "fixed-window 60/1m"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for (command, variable, value, right) in [
        ("replay", "EARRRL_REPLAY_RULE", "gcra", "expected a rate"),
        (
            "replay",
            "EARRRL_REPLAY_ANONYMIZE",
            "maybe",
            "expected true or false",
        ),
        (
            "serve",
            "EARRRL_ALLOW_REMOTE",
            "maybe",
            "expected true or false",
        ),
        ("serve", "EARRRL_LOG_JSON", " ", "expected true or false"),
        ("serve", "EARRRL_CAPACITY", "1e6", "'1e6'"),
    ] {
        let (code, _, err) = run(command, &[(variable, value)], &[]);
        assert_eq!((code, err.lines().count()), (Some(2), 1), "{err}");
        assert!(err.contains(variable) && err.contains(right), "{err}");
    }
}

#[test]
fn figures_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let svg = path("a.svg");
    let rule = ["--rule", "fixed-window 60/1m"];
    let plotted = |arguments: &[&str], file: &str| {
        let outcome = earrrl(&[arguments, &["--plot", file]].concat());
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
        fs::read(file).unwrap()
    };
    let client = ["--client", "a steady 2/s"];
    let simulate = [&["simulate", "--duration", "90s"], &rule[..], &client].concat();
    let log = log();
    let replay = [&["replay", "--assume-sorted"], &rule[..], &[&log]].concat();
    for arguments in [
        &simulate[..],
        &replay,
        &["suggest", &log, "--half-life", "10s"],
    ] {
        assert!(plotted(arguments, &svg).starts_with(b"<svg"));
    }
    for wrong in ["a.gif", "a.png", "/nowhere/a.svg"] {
        let wrong = earrrl(&[&simulate[..], &["--plot", wrong]].concat());
        assert_eq!((wrong.code, wrong.err.lines().count()), (Some(2), 1));
    }
}

/// Returns the JSON output of `suggest` for a log.
fn suggested(log: &str, arguments: &[&str]) -> serde_json::Value {
    let found = earrrl(&[&["suggest", log, "--output", "json"], arguments].concat());
    serde_json::from_str(&found.out).unwrap_or_else(|error| panic!("{error}: {found:?}"))
}

/// Writes a log of requests, each given by its second and its client.
fn written(requests: impl Iterator<Item = (f64, String)>) -> tempfile::NamedTempFile {
    let text = requests
        .map(|(time, client)| format!("{time},{client}\n"))
        .collect::<String>();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "time,key\n".to_owned() + &text).unwrap();
    file
}

#[test]
fn what_is_suggested_stops_those_who_stand_out_and_nobody_else() {
    let found = suggested(&log(), &[]);
    let suggestion = &found["suggestion"];
    let keys: Vec<_> = suggestion["touched"]
        .as_array()
        .unwrap()
        .iter()
        .map(|client| &client["key"])
        .collect();
    assert_eq!(keys, ["203.0.113.99", "198.51.100.23"], "{found:#}");
    assert_eq!(found["half_lives"].as_array().unwrap().len(), 2);
    let rule = suggestion["rule"].as_str().unwrap();
    let replayed = earrrl(&["replay", &log(), "--rule", rule, "--output", "json"]).out;
    let replayed: serde_json::Value = serde_json::from_str(&replayed).unwrap();
    assert_eq!(replayed["rules"][0]["clients_limited"], 2);
    assert_eq!(replayed["rules"][0]["denied"], suggestion["requests"]);
    // The table must report the same limit, and the clients that it would affect.
    let table = earrrl(&["suggest", &log()]).out;
    assert!(table.contains(&format!("--rule '{rule}'")), "{table}");
    assert!(
        table.contains("<- chosen") && table.contains("first"),
        "{table}"
    );
    let below = table.split("The next below the limit:").nth(1).unwrap();
    let touched = table.split("The next below the limit:").next().unwrap();
    assert!(touched.trim_end().contains("198.51.100.23") && !below.contains("198.51.100.23"));
    assert_eq!(found["below"].as_array().unwrap().len(), 5);
    assert_eq!(
        below
            .lines()
            .filter(|line| line.contains("2023-11-14"))
            .count(),
        5,
        "{table}"
    );
}

#[test]
fn no_more_are_touched_than_may_be() {
    for (touch, clients) in [("3%", 2), ("50%", 2)] {
        let found = suggested(&log(), &["--half-life", "10s", "--touch", touch]);
        assert_eq!(found["suggestion"]["clients"], clients, "{touch}");
    }
    let one = suggested(&log(), &["--half-life", "10s", "--touch", "1.2%"]);
    assert_eq!(one["suggestion"]["clients"], 1);
    let none = earrrl(&["suggest", &log(), "--touch", "1%"]).out;
    assert!(
        none.contains("less than one of 89 clients") && !none.contains("--rule"),
        "{none}"
    );
    for (option, value) in [
        ("--half-life", "10"),
        ("--half-life", "1us"),
        ("--touch", "100%"),
    ] {
        let outcome = earrrl(&["suggest", &log(), option, value]);
        assert_eq!((outcome.code, outcome.err.lines().count()), (Some(2), 1));
        assert!(outcome.err.contains(option), "{}", outcome.err);
    }
}

#[test]
fn an_abuser_that_sends_nearly_all_is_found() {
    let abuser = (0..9_800).map(|n| (f64::from(n) / 4.0, "abuser".to_owned()));
    let others = (0..200).map(|n| (f64::from(n) * 12.25, format!("client-{}", n % 40)));
    let file = written(abuser.chain(others));
    let found = suggested(file.path().to_str().unwrap(), &[]);
    let touched = found["suggestion"]["touched"].as_array().unwrap();
    assert_eq!(
        (touched.len(), &touched[0]["key"]),
        (1, &"abuser".into()),
        "{found:#}"
    );
}

#[test]
fn where_nobody_stands_out_nobody_is_stopped() {
    let requests = (0..4_000).map(|n| (f64::from(n) * 0.7, format!("client-{}", n * 7919 % 97)));
    let file = written(requests);
    let path = file.path().to_str().unwrap();
    assert_eq!(suggested(path, &[])["suggestion"], serde_json::Value::Null);
    let table = earrrl(&["suggest", path]).out;
    let reason = "No client stands out: under half-lives of 10s and 1m, no few clients have peaks far \
                  above all others.\n\nThe fastest clients:\n";
    assert!(
        table.contains(reason) && !table.contains("--rule"),
        "{table}"
    );
    assert_eq!(table.matches("  client-").count(), 10, "{table}");
    let tried = earrrl(&["replay", path]);
    assert!(
        tried
            .err
            .contains("no --rule, so twice the greatest peak is tried"),
        "{tried:?}"
    );
    assert!(tried.out.contains("nobody is denied"), "{}", tried.out);
}

/// A client that is never fast but sends all day stands out under a longer half-life only.
#[test]
fn a_half_life_that_was_not_tried_is_named_if_it_finds_somebody() {
    let steady = (0..7_200).map(|n| (f64::from(n), "steady".to_owned()));
    let visits = (0..97 * 25).map(|n| {
        let visit = n / 25;
        let nth = n % 25;
        (
            f64::from(visit) * 74.0 + f64::from(nth) * 0.3,
            format!("client-{visit}"),
        )
    });
    let file = written(steady.chain(visits));
    let path = file.path().to_str().unwrap();
    let table = earrrl(&["suggest", path]).out;
    let found = "far above all others. `suggest --half-life 10m` finds 1 client, \
                 `suggest --half-life 1h` finds 1 client.\n";
    assert!(table.contains(found), "{table}");
    let table = earrrl(&["suggest", path, "--half-life", "10s"]).out;
    assert!(
        table.contains("under a half-life of 10s, no few clients"),
        "{table}"
    );
    let followed = suggested(path, &["--half-life", "10m"]);
    assert_eq!(
        followed["suggestion"]["touched"][0]["key"], "steady",
        "{followed:#}"
    );
    assert!(earrrl(&["replay", path]).err.contains(found.trim_end()));
}

/// In a log of failed logins, many users of one address are an attack, and no reason to exempt it.
#[test]
fn many_names_of_failed_logins_are_no_office() {
    let line = |client: &str, user: u32, second: u32| {
        let minute = second / 60;
        let second = second % 60;
        format!(
            "Jan  1 12:{minute:02}:{second:02} host sshd[{user}]: Failed password for u{user} from {client} port 4711 ssh2\n"
        )
    };
    let attack = (0..600)
        .map(|second| line("198.51.100.1", second % 9, second))
        .collect::<String>();
    let others = (0..60)
        .map(|nth| line(&format!("192.0.2.{nth}"), nth, nth))
        .collect::<String>();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), attack + &others).unwrap();
    let table = earrrl(&["suggest", file.path().to_str().unwrap()]).out;
    assert!(
        table.contains("198.51.100.1  (tries 9 user names)"),
        "{table}"
    );
    assert!(!table.contains("one address for many"), "{table}");
}

#[test]
fn advice_becomes_a_configuration() {
    let toml = earrrl(&["suggest", &log(), "--config", "--key", "client,path"]).out;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &toml).unwrap();
    let path = file.path().to_str().unwrap();
    let checked = earrrl(&["config", "check", path]);
    assert_eq!(checked.code, Some(0), "{checked:?}: {toml}");
    assert!(toml.contains("key = [\"client\", \"path\"]"), "{toml}");
}

#[test]
fn without_a_rule_the_advice_is_tried() {
    let found = earrrl(&["replay", &log()]);
    assert_eq!(found.code, Some(0));
    assert!(
        found
            .err
            .contains("no --rule, so what `suggest` advises is tried: --rule 'recent")
    );
    assert!(found.out.contains("203.0.113.99") && found.out.contains("198.51.100.23"));
    let streamed = earrrl(&["replay", &log(), "--assume-sorted"]);
    assert!(
        streamed.err.contains("--assume-sorted needs a --rule"),
        "{streamed:?}"
    );
}

#[test]
fn a_table_of_limits_agrees_with_replay() {
    let found = earrrl(&["suggest", &log(), "--half-life", "10s"]).out;
    let row = found
        .lines()
        .find(|line| line.trim_start().starts_with("1/s "))
        .unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    // The expected counts for `recent-average 1/s half-life=10s strict` are from another program.
    assert_eq!((columns[1], columns[2], columns[5]), ("15", "2", "195"));
}

#[test]
fn clients_are_simulated() {
    let flags = [
        "simulate",
        "--rule",
        "fixed-window 60/1m",
        "--client",
        "greedy steady 5/3s until=150s",
        "--client",
        "greedy steady 1/s from=150s",
    ];
    let table = earrrl(&flags).out;
    assert!(table.contains("400        300  75.0 %"), "{table}");
    let login = [
        "--rule",
        "recent-average 0.2/s half-life=5m",
        "--rule",
        "gcra 1/m burst=5",
    ];
    let login = [&flags[..], &login].concat();
    let login = earrrl(&login).out;
    let at_once = |line: &str| line.split_once("greedy").unwrap().1.trim().to_owned();
    let at_once: Vec<String> = login.lines().skip(1).map(at_once).collect();
    assert!(at_once[0].starts_with("60  fixed-window"), "{login}");
    assert!(at_once[1].starts_with("87  recent-average"), "{login}");
    assert!(at_once[2].starts_with("5  gcra"), "{login}");
    let csv = earrrl(&[&flags[..], &["--output", "csv"]].concat()).out;
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some("rule,time,client,cost,allowed,rate,remaining,retry_after")
    );
    assert_eq!(lines.clone().count(), 400);
    assert_eq!(lines.filter(|line| line.contains(",true,")).count(), 300);
    let random = |seed| {
        let client = [
            "--client",
            "r random 5/s",
            "--seed",
            seed,
            "--output",
            "csv",
        ];
        earrrl(&[&["simulate", "--rule", "gcra 1/s burst=5"], &client[..]].concat()).out
    };
    assert_eq!(random("7"), random("7"));
    assert_ne!(random("7"), random("8"));
    let mut crowd = vec!["simulate", "--rule", "gcra 1/s burst=5"];
    crowd.extend(["--client", "<office> steady 1/s obey workers=5"]);
    let table = earrrl(&crowd).out;
    assert!(table.contains("   1  <office>"), "{table}");
    crowd.extend(["--output", "html"]);
    let page = earrrl(&crowd).out;
    assert!(page.contains("<td>1</td><td>&lt;office&gt;</td>"), "{page}");
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    let mistakes = [
        &["simulate"][..],
        &["simulate", "--rule", "gcra 1/s burst=5"],
        &["simulate", "--plot", "x.png"],
    ];
    for arguments in mistakes {
        let outcome = command::within_memory(100_000, arguments);
        assert_eq!(
            (outcome.code, outcome.err.lines().count()),
            (Some(2), 1),
            "{outcome:?}"
        );
    }
}

#[test]
fn clients_that_may_be_exempt_are_pointed_out() {
    let line = |client: &str, second: u32, path: &str, agent: &str| {
        let minute = second / 60;
        let second = second % 60;
        format!(
            "{client} - - [17/May/2015:10:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"{agent}\"\n"
        )
    };
    let mut log = String::new();
    for second in 0..600 {
        log += &line(
            &format!("192.0.2.{}", second % 100),
            second,
            "/",
            "Mozilla/5.0",
        );
        for _ in 0..20 {
            log += &line("198.51.100.1", second, "/login", "Googlebot/2.1");
            log += &line(
                "198.51.100.2",
                second,
                "/login",
                &format!("agent {}", second % 9),
            );
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &log).unwrap();
    let path = file.path().to_str().unwrap();
    let found = suggested(path, &[]);
    let remark = |place: usize| {
        found["suggestion"]["touched"][place]["remark"]
            .as_str()
            .unwrap_or_default()
    };
    let remarks = [remark(0), remark(1)].concat();
    assert!(remarks.contains("`Googlebot/2.1`: a crawler"), "{found:#}");
    assert!(remarks.contains("9 user agents"), "{found:#}");
    let table = earrrl(&["suggest", path]).out;
    assert!(
        table.contains("100 % of their requests are for /login: `--where path=/login`"),
        "{table}"
    );
    assert!(
        table.contains("That is more than 1 % of the clients"),
        "{table}"
    );
    let hidden = earrrl(&["suggest", path, "--anonymize"]).out;
    assert!(
        hidden.contains("its user agent: a crawler") && !hidden.contains("Google"),
        "{hidden}"
    );
    let read = command::earrrl_fed(&["suggest", "-"], log.as_bytes());
    assert_eq!(read.out, table);
}

/// Checks that the printed configuration limits as many requests as `suggest` counted under the same
/// flags, that the table prints these flags, and that flags which no rule can express are refused.
fn the_flags_are_in_the_configuration(log: &str, limits: &Path) {
    for (flags, expected) in [
        (
            ["--where", "path=/login"],
            "match = { path = \"/login\" }\nlimit",
        ),
        (["--key", "user"], "key = [\"user\"]\nmissing = \"skip\"\n"),
        (["--cost", "path:/login=20"], "cost = { \"/login\" = 20 }\n"),
    ] {
        let found = &suggested(log, &flags)["suggestion"];
        let config = earrrl(&[&["suggest", log, "--config"], &flags[..]].concat()).out;
        assert!(config.contains(expected), "{flags:?}: {config}");
        fs::write(limits, &config).unwrap();
        let limits = limits.to_str().unwrap();
        let replayed = earrrl(&["replay", log, "--config", limits, "--output", "json"]).out;
        let replayed: serde_json::Value = serde_json::from_str(&replayed).unwrap();
        assert_eq!(
            replayed["rules"][0]["over"], found["requests"],
            "{flags:?}: {config}"
        );
        let table = earrrl(&[&["suggest", log], &flags[..]].concat()).out;
        let printed = format!("    {} {} --rule 'recent-average", flags[0], flags[1]);
        assert!(table.contains(&printed), "{flags:?}: {table}");
        assert!(
            flags[0] != "--where" || !table.contains("advises for that path"),
            "{table}"
        );
    }
    let own = self::log();
    let pattern = r#"^(?<key>\S+) \S+ \S+ \[(?<time>[^\]]+)\] "[^"]*" \d+ (?<cost>\d+)"#;
    // One address sends five requests a second, and those of thirty other networks send one in ten seconds.
    let mut networks = String::new();
    for second in 0..600 {
        let honest = (0..30).filter(|network| (second + network) % 10 == 0);
        let honest = honest.map(|network| format!("10.1.{network}.1"));
        for client in honest.chain(vec!["10.2.0.1".to_owned(); 5]) {
            let (minute, second) = (second / 60, second % 60);
            networks += &format!(
                "{client} - - [17/May/2015:10:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 5\n"
            );
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &networks).unwrap();
    let networks = file.path().to_str().unwrap();
    for (log, flags, expected) in [
        (&*own, ["--cost", "2"], "\ncost = 2\n"),
        (
            &*own,
            ["--pattern", pattern],
            "\ncost = \"attribute:cost\"\n",
        ),
        (
            networks,
            ["--ipv4-prefix", "24"],
            "\nkey = [\"client/24\"]\n",
        ),
    ] {
        let config = earrrl(&[&["suggest", log, "--config"], &flags[..]].concat()).out;
        assert!(config.contains(expected), "{flags:?}: {config}");
    }
    for (flags, expected) in [
        (
            &["--where", "status=200"][..],
            "it decides before the response",
        ),
        (&["--cost", "field:bytes"], "it decides before the response"),
        (&["--key", "client,client"], "`client` is twice in the key"),
        (
            &["--where", "path=/login", "--where", "path=/*"],
            "two conditions on `path`",
        ),
        (
            &["--cost", "path:/login=20", "--cost", "2"],
            "costs by path and 1 elsewhere",
        ),
        (&["--cost", "2", "--cost", "1"], "a rule has one cost"),
        (
            &["--cost", "path:/l*=2", "--cost", "path:/login=20"],
            "after one that fits it too",
        ),
        (&["--cost", "path:login=20"], "starts with `/`"),
    ] {
        let refused = earrrl(&[&["suggest", log, "--config"], flags].concat());
        assert!(
            refused.code == Some(2) && refused.err.contains(expected),
            "{refused:?}"
        );
    }
}

/// Clients choose paths. What is printed to be copied into a shell runs nothing, and a rule for a path
/// is not one for all paths.
#[test]
fn hostile_paths_are_no_commands_and_no_patterns() {
    let table = |path: &str| {
        let mut log = String::new();
        for second in 0..600 {
            let time = format!("17/May/2015:10:{:02}:{:02} +0000", second / 60, second % 60);
            for reader in 0..60 {
                let path = if second == reader * 5 { path } else { "/page" };
                log += &format!("192.0.2.{reader} - - [{time}] \"GET {path} HTTP/1.1\" 200 5\n");
            }
            log += &format!("198.51.100.1 - - [{time}] \"GET {path} HTTP/1.1\" 200 5\n");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &log).unwrap();
        earrrl(&["suggest", file.path().to_str().unwrap()]).out
    };
    let printed = table("/x';reboot;'");
    assert!(
        printed.contains(r"    --where 'path=/x'\'';reboot;'\''' --rule '"),
        "{printed}"
    );
    for path in ["*", "/*", "/a*b", "example.com:443"] {
        let printed = table(path);
        let read = printed.contains("clients, 36600 requests");
        assert!(read && !printed.contains("A rule for"), "{printed}");
    }
}

#[test]
fn a_path_and_a_user_get_rules_of_their_own() {
    let line = |client: &str, user: &str, second: u32, path: &str| {
        let minute = second / 60;
        let second = second % 60;
        format!(
            "{client} - {user} [17/May/2015:10:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 5\n"
        )
    };
    let mut log = String::new();
    for second in 0..600 {
        // Sixty readers read many pages, and log in once.
        for reader in 0..60 {
            let page = format!("/page/{}", (reader + second) % 50);
            log += &line(
                &format!("192.0.2.{reader}"),
                &format!("user-{reader}"),
                second,
                &page,
            );
            if second == reader * 5 {
                log += &line(&format!("192.0.2.{reader}"), "-", second, "/login");
            }
        }
        // One client tries passwords as often as a reader reads, and one user uses many addresses.
        log += &line("198.51.100.1", "-", second, "/login");
        for nth in 0..20 {
            let address = format!("203.0.113.{}", (second * 20 + nth) % 250);
            log += &line(&address, "mallory", second, &format!("/page/{nth}"));
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &log).unwrap();
    let path = file.path().to_str().unwrap();
    let found = suggested(path, &[]);
    assert_eq!(found["suggestion"], serde_json::Value::Null, "{found:#}");
    let paths = found["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 1, "{found:#}");
    assert_eq!(
        (&paths[0]["path"], &paths[0]["clients"]),
        (&"/login".into(), &1.into())
    );
    assert_eq!(paths[0]["touched"][0]["key"], "198.51.100.1");
    assert_eq!(found["user"]["touched"], serde_json::json!(["mallory"]));
    let table = earrrl(&["suggest", path]).out;
    for part in [
        "A rule for /login alone",
        "--where path=/login --rule '",
        "--key user --rule '",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    // The rules are those of a server's configuration, and deny what `suggest` counted.
    let config = earrrl(&["suggest", path, "--config"]).out;
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.toml");
    fs::write(&limits, &config).unwrap();
    let replayed = earrrl(&[
        "replay",
        path,
        "--config",
        limits.to_str().unwrap(),
        "--output",
        "json",
    ]);
    let replayed: serde_json::Value = serde_json::from_str(&replayed.out)
        .unwrap_or_else(|error| panic!("{error}: {replayed:?}: {config}"));
    let rules = replayed["rules"].as_array().unwrap();
    for (name, expected) in [
        ("suggested-path-1", &paths[0]),
        ("suggested-user", &found["user"]),
    ] {
        let rule = rules.iter().find(|rule| rule["name"] == name).unwrap();
        assert_eq!(rule["over"], expected["requests"], "{replayed:#}");
    }
    // The rule for users does not apply to requests without a user.
    assert!(
        config.contains("key = [\"user\"]\nmissing = \"skip\"\n"),
        "{config}"
    );
    the_flags_are_in_the_configuration(path, &limits);
    // Nothing of this is found where a condition or another key was asked for.
    let narrow = suggested(path, &["--where", "path=/login"]);
    assert_eq!(
        (&narrow["paths"], &narrow["user"]),
        (&serde_json::json!([]), &serde_json::Value::Null)
    );
}

/// 60 clients of two networks, each of which tries a password every five minutes, and 80 visitors.
#[test]
fn many_slow_clients_with_one_agent_are_one_group() {
    let mut log = String::new();
    for second in 0..3600_u32 {
        let time = format!("17/May/2015:10:{:02}:{:02} +0000", second / 60, second % 60);
        let mut line = |client: &str, path: &str, status: u16, agent: &str| {
            log += &format!(
                "{client} - - [{time}] \"POST {path} HTTP/1.1\" {status} 5 \"-\" \"{agent}\"\n"
            );
        };
        let (visitor, bot) = (second / 45, second % 300 / 5);
        if second % 45 < 5 {
            let path = if second % 45 == 0 { "/login" } else { "/page" };
            line(
                &format!("192.0.2.{visitor}"),
                path,
                200,
                &format!("Firefox/{}", visitor % 7),
            );
        }
        if second % 5 == 0 {
            line(
                &format!("203.0.{}.{bot}", bot % 2),
                "/login",
                401,
                "Tool/1.0 (\u{e9})",
            );
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let path = write("access.log", &log);
    let found = suggested(&path, &[]);
    let group = &found["groups"][0];
    assert_eq!(found["groups"].as_array().unwrap().len(), 1, "{found:#}");
    assert_eq!(
        (&group["paths"], &group["exempt"]),
        (&serde_json::json!(["/login"]), &serde_json::json!([]))
    );
    assert_eq!(group["touched"].as_array().unwrap().len(), 60);
    let table = earrrl(&["suggest", &path]).out;
    let networks = "60 of them in 2 networks (203.0.0.0/24, 203.0.1.0/24), sent 90.0 % of the 800 requests for /login; 100 %";
    assert!(table.contains(networks), "{table}");
    // No honest client stands between the reader and the group.
    assert!(
        table.contains("No client stands out alone: ") && !table.contains("The fastest clients"),
        "{table}"
    );
    assert!(
        table.contains("does not limit the 80 other clients"),
        "{table}"
    );
    // The rule is one of a server's configuration, and denies what `suggest` counted.
    let config = earrrl(&["suggest", &path, "--config"]).out;
    let limits = write("limits.toml", &config);
    let checked = earrrl(&["config", "check", &limits]);
    assert_eq!(checked.code, Some(0), "{checked:?}: {config}");
    let replayed = earrrl(&["replay", &path, "--config", &limits, "--output", "json"]).out;
    let replayed: serde_json::Value = serde_json::from_str(&replayed).unwrap();
    assert_eq!(replayed["rules"][0]["over"], group["requests"], "{config}");
    // Pseudonyms hide networks and agents, and a rule has no condition on responses.
    let hidden = earrrl(&["suggest", &path, "--anonymize"]).out;
    assert!(hidden.contains("60 clients, with 1 user agent"), "{hidden}");
    assert!(
        !hidden.contains("203.0.") && !hidden.contains("Tool/"),
        "{hidden}"
    );
    let narrow = suggested(&path, &["--where", "status=401"]);
    assert_eq!(narrow["groups"], serde_json::json!([]));
}
