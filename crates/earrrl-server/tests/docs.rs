//! Tests the configurations and commands that the documentation prints.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::TestServer;
use crate::support::tools::{self, tool};

const EARRRL: &str = env!("CARGO_BIN_EXE_earrrl");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the pages of the documentation with their names.
fn pages() -> Vec<(String, String)> {
    let files = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

/// Returns the fenced code blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    page.split(&*fence)
        .skip(1)
        .map(|rest| rest.split_once("\n```").unwrap().0)
        .collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_configuration_in_the_documentation_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    write_descriptors(folder.path());
    let mut checked = 0;
    for (name, page) in pages() {
        let all = blocks(&page, "toml");
        for block in all
            .into_iter()
            .filter(|block| !block.contains("[dependencies]"))
        {
            // An example of another section limits nothing, which is otherwise an error.
            let limits = ["[[rule]]", "rules = ", "files = "]
                .iter()
                .any(|it| block.contains(it));
            let rules = if limits { "" } else { "rules = \"none\"\n" };
            // The secret of the examples is refused.
            let block = block.replace("replace-me-by-a-secret", "0123456789abcdef");
            fs::write(
                folder.path().join("limits.toml"),
                format!("{rules}{block}\n"),
            )
            .unwrap();
            let mut check = Command::new(EARRRL);
            let check = check
                .args(["config", "check", "limits.toml"])
                .current_dir(folder.path());
            let output = check.output().unwrap();
            // Files such as certificates do not exist on this machine. No other error is accepted.
            let mistakes = stderr(&output);
            let absent = "No such file or directory (os error 2)";
            let only_files = mistakes.lines().all(|line| line.ends_with(absent));
            assert!(
                output.status.success() || only_files,
                "{name}: {mistakes}\n{block}"
            );
            let is_recipe = name == "choosing-a-limit.md";
            assert!(
                !is_recipe || mistakes.is_empty(),
                "{name}: {mistakes}\n{block}"
            );
            checked += 1;
        }
    }
    assert!(checked >= 10, "{checked} configurations were found");
}

/// Beginnings of commands that bash only parses: they do not end, or need a proxy, a container, an
/// hour or the rights of root.
const PARSED: [&str; 14] = [
    "cargo ",
    "clone=",
    "docker ",
    "earrrl replay access.log --since",
    "earrrl serve ",
    "earrrl top ",
    "for n in",
    "for request in",
    "kill ",
    "nft ",
    "tail -F ",
    "target/release/",
    "target/debug/",
    "until ",
];

/// Returns the fenced blocks of a page with their languages.
fn fenced(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let inside = lines.by_ref().take_while(|line| line.trim() != "```");
            found.push((
                language.to_owned(),
                inside.map(|line| format!("{line}\n")).collect(),
            ));
        }
    }
    found
}

/// Returns the commands of a block with their continuation lines. In a block of a console, these
/// are the lines after a prompt.
fn commands(language: &str, block: &str) -> String {
    let mut kept = String::new();
    let mut continues = language == "sh";
    for line in block.lines().map(str::trim) {
        let prompted = line.strip_prefix("$ ");
        if prompted.is_some() || continues {
            kept += &format!("{}\n", prompted.unwrap_or(line));
            continues = language == "sh" || line.ends_with('\\');
        }
    }
    kept
}

/// Writes the descriptor file that docs/envoy.md prints to the path by which the commands of the pages name it, in
/// `folder`.
fn write_descriptors(folder: &Path) {
    fs::create_dir_all(folder.join("ratelimit/config")).unwrap();
    let envoy = fs::read_to_string(root().join("docs/envoy.md")).unwrap();
    fs::write(
        folder.join("ratelimit/config/shop.yaml"),
        blocks(&envoy, "yaml")[0],
    )
    .unwrap();
}

/// A folder with the files that commands in the documentation name, and a server for their requests.
struct Reader {
    folder: tempfile::TempDir,
    server: TestServer,
}

impl Reader {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink(root().join("testdata"), at("testdata")).unwrap();
        fs::copy(root().join("testdata/logs/access.log"), at("access.log")).unwrap();
        fs::copy(root().join("contrib/limits.toml"), at("limits.toml")).unwrap();
        write_descriptors(folder.path());
        let rule = |name| format!("[[rule]]\nname = \"{name}\"\nlimit = \"gcra 1/h burst=99\"\n");
        Self {
            folder,
            server: TestServer::start(&(rule("default") + &rule("login"))),
        }
    }

    /// Runs commands, or has bash parse them if they are [`PARSED`]. Returns true if they ran.
    fn runs(&self, name: &str, commands: &str) -> bool {
        let parsed = commands
            .lines()
            .any(|line| PARSED.iter().any(|start| line.starts_with(start)));
        let script = commands
            .replace("8080", &self.server.http.port().to_string())
            .replace("6380", &self.server.resp.port().to_string())
            .replace("--follow ", "");
        let path = [
            Path::new(EARRRL).parent().unwrap(),
            &tools::folder().join("bin"),
        ]
        .map(|folder| folder.display().to_string())
        .join(":");
        let output = Command::new("bash")
            .args([if parsed { "-nc" } else { "-euc" }, &script])
            .current_dir(self.folder.path())
            .env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()))
            .env("TOKEN", "a-token-0123456789")
            .output()
            .unwrap();
        // The log of the test has no lines such as some commands ask for, but their options are right.
        let mistakes = stderr(&output);
        let succeeded = output.status.success() || mistakes.contains("lines is usable");
        assert!(succeeded, "{name}: {mistakes}\n{script}");
        !parsed
    }
}

/// Every block of the documentation is checked: here, by another test, by the doctests of
/// `earrrl-tower` and `earrrl-server`, or by the tests of
/// `python/` and `node/`. Prints how many are checked in each way.
#[test]
fn every_block_of_the_documentation_is_checked() {
    let reader = Reader::new();
    let mut counts = std::collections::BTreeMap::<&str, u32>::new();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for (name, page) in pages()
        .into_iter()
        .chain([("README.md".to_owned(), readme)])
    {
        for (language, block) in fenced(&page) {
            let way = match language.split([' ', ',']).next().unwrap() {
                "toml" if block.contains("[dependencies]") => {
                    block.parse::<toml::Table>().unwrap();
                    "manifests that are parsed"
                }
                "toml" => "configurations that the server checks",
                "sh" | "console" if reader.runs(&name, &commands(&language, &block)) => {
                    "blocks of commands that run"
                }
                "sh" | "console" => "blocks of commands that bash parses",
                "json" => {
                    for value in serde_json::Deserializer::from_str(&block).into_iter() {
                        let _: serde_json::Value = value.unwrap();
                    }
                    "JSON that is parsed"
                }
                "yaml" => {
                    for event in granit_parser::Parser::new_from_str(&block) {
                        assert!(event.is_ok(), "{name}: {event:?}\n{block}");
                    }
                    "YAML that is parsed"
                }
                "rust" => {
                    let tested = [
                        "README.md",
                        "how-it-works.md",
                        "middleware.md",
                        "state-files.md",
                        "distributed.md",
                    ];
                    assert!(tested.contains(&&*name), "{name} is not among the doctests");
                    "Rust that doctests compile"
                }
                "python" | "js" => {
                    let tested = ["clients.md", "moving.md", "python.md", "node.md"];
                    assert!(tested.contains(&&*name), "{name}");
                    "programs that run"
                }
                "java" | "go" | "ruby" | "php" => "programs that scripts/gate runs",
                "csharp" => "programs that are not run here",
                "wire" => {
                    assert_eq!(name, "wire.md");
                    "exchanges that the test `wire` replays"
                }
                "nginx" => {
                    let site = fs::read_to_string(root().join("contrib/nginx/site.conf")).unwrap();
                    assert!(site.ends_with(&block), "{name}: {block}");
                    "parts of recipes that scripts/gate runs"
                }
                "ini" | "text" => "files of other programs, and outputs",
                other => panic!("{name}: a block of the language {other:?}:\n{block}"),
            };
            *counts.entry(way).or_default() += 1;
        }
    }
    eprintln!("{counts:#?}\n{} blocks", counts.values().sum::<u32>());
    assert!(counts["blocks of commands that run"] >= 15, "{counts:?}");
}

#[test]
fn every_page_begins_with_who_it_is_for() {
    for (name, page) in pages().into_iter().filter(|(name, _)| name != "SUMMARY.md") {
        let text = page.split_once("\n\n").unwrap().1;
        let readers = text.strip_prefix("This page is for ").unwrap_or_default();
        let known = [
            "operators",
            "developers",
            "contributors",
            "authors of Rust services",
        ];
        assert!(
            known.iter().any(|known| readers.starts_with(known)),
            "{name}: {text:.60}"
        );
    }
}

/// Runs the examples in a language; each must print true. Their timeouts assume an idle machine.
fn run_client_examples(language: &str, program: &str, file: &str) {
    let server = TestServer::start("[[rule]]\nname = \"default\"\nlimit = \"gcra 1/h burst=9\"\n");
    let page = fs::read_to_string(root().join("docs/clients.md")).unwrap();
    let page = page.replace("8080", &server.http.port().to_string());
    let page = page.replace("6380", &server.resp.port().to_string());
    let page = page
        .replace("=0.5", "=60")
        .replace("(500)", "(60000)")
        .replace(": 500", ": 60000");
    let (folder, tools) = (tempfile::tempdir().unwrap(), tools::folder());
    let file = folder.path().join(file);
    for block in blocks(&page, language) {
        fs::write(&file, block).unwrap();
        let mut command = tool(program);
        command
            .env("PYTHONPATH", tools.join("python"))
            .env("NODE_PATH", tools.join("node_modules"));
        let output = command.arg(&file).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout)
            .trim()
            .to_lowercase();
        assert_eq!(printed, "true", "{}\n{block}", stderr(&output));
    }
}

#[test]
fn the_clients_in_python_are_allowed() {
    run_client_examples("python", "python3", "client.py");
}

#[test]
fn the_clients_in_node_are_allowed() {
    run_client_examples("js", "node", "client.cjs");
}

/// Runs the lines of contrib/redis that call the script, each beside it.
#[test]
fn the_script_for_redis_is_called_as_its_page_says() {
    let redis = crate::support::redis::Redis::start();
    let contrib = root().join("contrib/redis");
    let page = fs::read_to_string(contrib.join("README.md")).unwrap();
    let page = page.replace("6379", &redis.address.port().to_string());
    let page = page.replace(
        "redis-cli --eval",
        &format!("redis-cli -p {} --eval", redis.address.port()),
    );
    let tools = tools::folder();
    let path = format!(
        "{}:{}",
        tools.join("bin").display(),
        std::env::var("PATH").unwrap()
    );
    for (language, run, expected) in [
        ("sh", ["sh", "-c"], "allowed 1 rate 0 retry_after 0.000000"),
        ("python", ["python3", "-c"], "true"),
        ("js", ["node", "-e"], "true"),
    ] {
        let block = blocks(&page, language)[0];
        let mut command = if language == "sh" {
            Command::new("sh")
        } else {
            tool(run[0])
        };
        command
            .args([run[1], block])
            .current_dir(&contrib)
            .env("PATH", &path)
            .env("PYTHONPATH", tools.join("python"))
            .env("NODE_PATH", tools.join("node_modules"));
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).to_lowercase();
        let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(printed, expected, "{}\n{block}", stderr(&output));
    }
}

#[test]
fn the_middleware_for_express_limits_a_client() {
    let server = TestServer::start("[[rule]]\nname = \"default\"\nlimit = \"gcra 1/h burst=3\"\n");
    let page = fs::read_to_string(root().join("docs/moving.md")).unwrap();
    let page = page
        .replace("8080", &server.http.port().to_string())
        .replace("(500)", "(60000)");
    let application = r#"
        const app = require("http").createServer((request, response) => {
          request.ip = "192.0.2.7";
          rateLimit("default", request, response, () => response.end("served"));
        });
        app.listen(0, "127.0.0.1", async () => {
          for (let index = 0; index < 4; index++) {
            const answer = await fetch(`http://127.0.0.1:${app.address().port}/`);
            console.log(answer.status, answer.headers.has("ratelimit"), answer.headers.has("retry-after"));
          }
          process.exit();
        });
    "#;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("express.cjs");
    fs::write(&file, format!("{}{application}", blocks(&page, "js")[1])).unwrap();
    let output = tool("node").arg(&file).output().unwrap();
    let expected = "200 true false\n200 true false\n200 true false\n429 true true\n";
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        expected,
        "{}",
        stderr(&output)
    );
}

/// Simulates a guesser that tries once a second for a day, against the rules for logins: those by address, for proxies,
/// and those by user too, for applications.
#[test]
fn the_rules_for_logins_stop_a_guesser() {
    let page = fs::read_to_string(root().join("docs/choosing-a-limit.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("limits.toml");
    let log = folder.path().join("guesses.log");
    let line = |second: u32| {
        let hour = second / 3600;
        let minute = second / 60 % 60;
        let second = second % 60;
        let time = format!("01/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000");
        format!("192.0.2.7 - alice [{time}] \"POST /login HTTP/1.1\" 401 12 \"-\" \"guess\"\n")
    };
    fs::write(&log, (0..86_400).map(line).collect::<String>()).unwrap();
    for (rule, denied) in [("login-burst", 86_348), ("user-burst", 86_395)] {
        let rules = blocks(&page, "toml")
            .into_iter()
            .find(|block| block.contains(rule));
        fs::write(&config, rules.unwrap()).unwrap();
        let mut command = Command::new(EARRRL);
        let output = command
            .args(["replay", "--config"])
            .args([&config, &log])
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(
            report.contains(&format!("{denied} of 86400 not allowed")),
            "{report}{}",
            stderr(&output)
        );
    }
}

/// The rules for an API and those for crawlers in one file: clients of the API get what they pay for.
#[test]
fn the_rules_for_apis_and_crawlers_fit_together() {
    let page = fs::read_to_string(root().join("docs/choosing-a-limit.md")).unwrap();
    let all = blocks(&page, "toml");
    let rules = |name: &str| {
        let block = all.iter().find(|block| block.contains(name)).unwrap();
        format!("{block}\n")
    };
    let server = TestServer::start(&(rules("header:x-api-key") + &rules("\"pages\"")));
    let mut client = server.http();
    let mut passed = |path: &str, key: &str| {
        let asked = serde_json::json!({"attributes": {
            "client": "192.0.2.7", "method": "GET", "path": path, "header:x-api-key": key,
        }});
        let body = asked.to_string();
        (0..100)
            .filter(|_| client.post("/v1/check", &body).status == 200)
            .count()
    };
    assert_eq!(
        [passed("/api/a", "one"), passed("/api/a", "two")],
        [100, 100]
    );
    assert!(passed("/page", "one") < 90);
}

/// The service is installed as the page says, in a folder in place of the root. `cargo` and `systemctl` do
/// nothing.
#[test]
fn the_service_is_installed_as_documented() {
    let page = fs::read_to_string(root().join("docs/production.md")).unwrap();
    let (_, section) = page.split_once("\n## Installing the service\n").unwrap();
    let script = blocks(section, "sh")[0];
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    for path in ["home/.cargo/bin", "usr/local/bin", "etc/systemd/system"] {
        fs::create_dir_all(at(path)).unwrap();
    }
    fs::copy(EARRRL, at("home/.cargo/bin/earrrl")).unwrap();
    let here = folder.path().display();
    let script = ["/usr/", "/etc/"]
        .into_iter()
        .fold(script.to_owned(), |script, path| {
            script.replace(path, &format!("{here}{path}"))
        });
    assert_eq!(script.lines().count(), 8, "{script}");
    let stubs = "cargo() { :; }; systemctl() { :; }; curl() { :; }; sudo() { \"$@\"; };";
    let output = Command::new("bash")
        .args(["-euc", &format!("{stubs}\n{script}")])
        .current_dir(root())
        .env("HOME", at("home"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}\n{script}", stderr(&output));
    let unit = fs::read_to_string(at("etc/systemd/system/earrrl.service")).unwrap();
    let (_, command) = unit.split_once("ExecStart=").unwrap();
    let words: Vec<&str> = command.lines().next().unwrap().split(' ').collect();
    let [program, "serve", "--config", config] = words[..] else {
        panic!("{words:?}")
    };
    let mut check = Command::new(at(&program[1..]));
    let output = check
        .args(["config", "check"])
        .arg(at(&config[1..]))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Returns the anchors of a page: its headings as GitHub and mdBook write them.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let anchor = |heading: &str| {
        let text: String = heading
            .trim_start_matches('#')
            .trim()
            .chars()
            .filter(kept)
            .collect();
        text.to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_in_the_documentation_leads_to_a_file() {
    const HERE: &str = "https://github.com/earrrl/earrrl/blob/main/";
    let mut links = 0;
    for (name, page) in pages() {
        for target in page
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = match target.strip_prefix(HERE) {
                Some(file) => root().join(file),
                None if target.starts_with("http") => continue,
                None if path.is_empty() => root().join("docs").join(&name),
                None => root().join("docs").join(path),
            };
            assert!(file.exists(), "{name}: {target}");
            if !anchor.is_empty() {
                let found = anchors(&fs::read_to_string(file).unwrap());
                assert!(
                    found.iter().any(|known| known == anchor),
                    "{name}: {target}"
                );
            }
            links += 1;
        }
    }
    assert!(links > 50, "{links}");
}

#[test]
fn the_site_has_every_page() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    for (name, _) in pages().iter().filter(|(name, _)| name != "SUMMARY.md") {
        assert!(summary.contains(&format!("]({name})")), "{name}");
    }
}
