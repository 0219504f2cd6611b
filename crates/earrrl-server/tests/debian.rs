//! Tests the recipes of `contrib/` for nginx and HAProxy with Debian's packages, sends every spelling
//! of a path to applications, runs the applications of docs/clients.md, starts servers on full and read-only file systems, and lets nginx and
//! promtool read what the program writes. `scripts/gate` installs the packages and runs these tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "debian/clients.rs"]
mod clients;
#[path = "debian/mounts.rs"]
mod mounts;
#[path = "debian/spellings.rs"]
mod spellings;
mod support;
#[path = "debian/written.rs"]
mod written;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use support::balancer::{Balancer, balanced_server, each_client_is_limited, heads};
use support::hostile::{self, none_is_served};
use support::proxy::{
    HAMMERING, Limiter, POLITE, Proxy, keeps_its_own_token, keeps_out_who_hammers,
    leaves_the_rest_alone, limiter_with_a_token, serves_with_a_wrong_token,
    stays_closed_without_us, stays_open_while_we_hang, stays_open_without_us, with_the_token,
};

fn program(path: &str) -> Command {
    assert!(
        Path::new(path).exists(),
        "{path} is missing: scripts/gate installs it"
    );
    Command::new(path)
}

fn run_nginx() -> Command {
    let mut command = program("/usr/sbin/nginx");
    command.args(["-p", ".", "-c", "nginx.conf", "-g", "daemon off;"]);
    command
}

fn nginx(limiter: &Limiter) -> Proxy {
    Proxy::start("nginx", limiter, &mut run_nginx())
}

fn run_haproxy() -> Command {
    let mut command = program("/usr/sbin/haproxy");
    command.args(["-db", "-f", "haproxy.cfg"]);
    command
}

fn haproxy(limiter: &Limiter) -> Proxy {
    Proxy::start("haproxy", limiter, &mut run_haproxy())
}

/// Returns Debian's `global` section with the script added, followed by the recipe's other
/// sections.
fn in_debians_haproxy(file: &Path, text: &str) -> String {
    if !file.ends_with("haproxy.cfg") {
        return text.to_owned();
    }
    let debians = fs::read_to_string("/etc/haproxy/haproxy.cfg").unwrap();
    let global = debians.split("\ndefaults").next().unwrap();
    assert!(
        global.contains("chroot") && global.contains("user haproxy"),
        "{global}"
    );
    let script = file.with_file_name("earrrl.lua");
    let (_, recipe) = text.split_once("lua-load earrrl.lua\n").unwrap();
    format!("{global}\n\tlua-load {}\n{recipe}", script.display())
}

/// Returns Debian's `nginx.conf`, which includes the recipe instead of other sites.
fn in_debians_nginx(file: &Path, text: &str) -> String {
    if !file.ends_with("nginx.conf") {
        return text.to_owned();
    }
    let debians = fs::read_to_string("/etc/nginx/nginx.conf").unwrap();
    let folder = file.parent().unwrap();
    // Debian's files name modules relative to the prefix.
    symlink("/usr/share/nginx/modules", folder.join("modules")).unwrap();
    let folder = folder.display().to_string();
    let replaced = debians
        .replace(
            "/etc/nginx/sites-enabled/*;",
            &format!("{folder}/earrrl.conf;"),
        )
        .replace("/run/nginx.pid", &format!("{folder}/nginx.pid"))
        .replace("/var/log/nginx", &folder);
    assert!(
        replaced.contains("earrrl.conf") && replaced.contains("user www-data"),
        "{replaced}"
    );
    replaced
}

/// Each line of the part for sites is one of the recipe.
#[test]
fn the_part_of_nginx_for_sites_is_that_of_the_recipe() {
    let lines = |name: &str| -> Vec<String> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../contrib/nginx")
            .join(name);
        let text = fs::read_to_string(file).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    };
    let recipe = lines("earrrl.conf");
    let part = lines("earrrl-ask.conf");
    for line in part.iter().filter(|line| !line.starts_with('#')) {
        assert!(recipe.contains(line), "{line}");
    }
}

/// Returns the users that a process and its children run as.
fn users(process: u32) -> Vec<String> {
    let output = Command::new("ps")
        .args([
            "-o",
            "user:32=",
            "--pid",
            &process.to_string(),
            "--ppid",
            &process.to_string(),
        ])
        .output();
    let lines = String::from_utf8(output.unwrap().stdout).unwrap();
    lines.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn nginx_keeps_out_who_hammers() {
    let limiter = Limiter::start(403);
    let proxy = nginx(&limiter);
    keeps_out_who_hammers(&proxy, true);
    leaves_the_rest_alone(&proxy);
}

#[test]
fn nginx_stays_open_without_us() {
    let mut limiter = Limiter::start(403);
    let proxy = nginx(&limiter);
    stays_open_without_us(&proxy, &mut limiter);
}

#[test]
fn haproxy_keeps_out_who_hammers() {
    let limiter = Limiter::start(429);
    let proxy = haproxy(&limiter);
    keeps_out_who_hammers(&proxy, true);
    leaves_the_rest_alone(&proxy);
}

/// HAProxy 2.6 crashes if a script asks with a hundred header lines.
#[test]
fn a_header_that_is_repeated_often_is_denied_by_haproxy() {
    let limiter = Limiter::start(429);
    let mut proxy = haproxy(&limiter);
    for count in [60, 97] {
        proxy.login(5, &"X-Api-Key: v\r\n".repeat(count));
    }
    assert_eq!(proxy.login(5, &"X-Api-Key: v\r\n".repeat(90)).status, 429);
    assert_eq!(proxy.client(6).get("/").status, 200);
    assert!(proxy.runs());
}

#[test]
fn haproxy_stays_open_without_us() {
    let mut limiter = Limiter::start(429);
    let proxy = haproxy(&limiter);
    stays_open_without_us(&proxy, &mut limiter);
}

/// The recipes are changed as the table in docs/proxies.md says.
#[test]
fn both_can_refuse_requests_without_us() {
    stays_closed_without_us("nginx", &mut run_nginx(), (403, 500), |text| {
        text.replace("return 204;", "return 500;")
    });
    stays_closed_without_us("haproxy", &mut run_haproxy(), (429, 429), |text| {
        let condition = "if not action and (status < 200 or status == 401 or status >= 500) then\n";
        let refuse = format!("{condition}txn:set_var(\"txn.earrrl_denied\", 503)\n");
        text.replace(condition, &refuse)
    });
}

#[test]
fn while_we_hang_both_stay_open() {
    let recipes = [("nginx", run_nginx(), 403), ("haproxy", run_haproxy(), 429)];
    for (recipe, mut command, deny_status) in recipes {
        let limiter = Limiter::start(deny_status);
        let as_it_is = |_: &Path, text: &str| text.to_owned();
        let proxy = Proxy::start_with(recipe, &limiter, &mut command, as_it_is);
        stays_open_while_we_hang(&proxy, &limiter);
    }
}

/// The site of docs/proxies.md, with several locations: files, applications, and a location that is not counted.
fn site(limiter: &Limiter) -> Proxy {
    Proxy::start_with("nginx", limiter, &mut run_nginx(), |file, text| {
        let folder = file.parent().unwrap().display();
        if file.ends_with("site.conf") {
            for place in ["static", "private"] {
                fs::create_dir_all(file.with_file_name(place)).unwrap();
                fs::write(file.with_file_name(place).join("a.txt"), "a file").unwrap();
            }
            fs::write(file.with_file_name("robots.txt"), "a file").unwrap();
            fs::write(file.with_file_name("passwords"), "alice:{PLAIN}secret").unwrap();
        }
        let private = format!(
            "location /private/ {{ auth_basic login; auth_basic_user_file {folder}/passwords; }}\n    \
             location /static/"
        );
        text.replace("include earrrl.conf", "include site.conf")
            .replace("snippets/", "")
            .replace("/srv/shop", &folder.to_string())
            .replace("location /static/", &private)
            .replace("50ms", "20s")
    })
}

#[test]
fn a_site_of_nginx_is_limited_and_stays_open_without_us() {
    let files = "[[rule]]\nname = \"files\"\nlimit = \"gcra 0.001/s burst=3\"\nkey = \"client\"\n\
                 match = { path = \"/static/*\" }\n";
    let [api, shop] = ["api", "shop"].map(|name| {
        files
            .replace("files", name)
            .replace("/static/", &format!("/{name}/"))
    });
    let mut limiter = Limiter::start_with(429, &format!("{files}{api}{shop}"));
    let proxy = site(&limiter);
    let status = |path: &str| proxy.client(HAMMERING).get(path).status;
    // /shop/page is no file, so nginx goes on with /index.php, for which it asks again: the request counts once.
    let shown = proxy.client(HAMMERING).get("/shop/page");
    assert_eq!(shown.body, "GET /index.php allow ");
    assert!(
        shown
            .header("ratelimit")
            .unwrap()
            .starts_with("\"shop\";r=2;"),
        "{shown:?}"
    );
    assert_eq!([(); 3].map(|()| status("/shop/page")), [200, 200, 429]);
    for path in ["/static/a.txt", "/api/a"] {
        let seen: Vec<_> = (0..4).map(|_| status(path)).collect();
        assert_eq!(seen, [200, 200, 200, 429], "{path}");
    }
    let denied = proxy.client(HAMMERING).get("/api/a");
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    assert_eq!(
        denied.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!((status("/"), status("/robots.txt")), (200, 200));
    // A folder without an index, and a place that needs a password.
    assert_eq!(proxy.client(POLITE).get("/static/").status, 403);
    assert_eq!(status("/private/a.txt"), 401);
    for answer in [401, 403, 500] {
        assert_eq!(status(&format!("/status/{answer}")), answer);
    }
    limiter.kill();
    for path in [
        "/static/a.txt",
        "/api/a",
        "/",
        "/robots.txt",
        "/static/a.txt",
    ] {
        let answer = proxy.client(HAMMERING).get(path);
        let expected = if path.contains('.') {
            "a file"
        } else {
            &format!("GET {path} none ")
        };
        assert_eq!((answer.status, &*answer.body), (200, expected), "{path}");
    }
    assert_eq!([status("/static/"), status("/private/a.txt")], [403, 401]);
    limiter.serve();
    support::until("limits are back", || status("/static/a.txt") == 429);
}

/// HAProxy runs with `user haproxy` and `chroot /var/lib/haproxy`, which needs root.
#[test]
fn haproxy_keeps_out_who_hammers_in_debians_configuration() {
    fs::create_dir_all("/run/haproxy").unwrap();
    let mut limiter = Limiter::start(429);
    let in_debians =
        |file: &Path, text: &str| in_debians_haproxy(file, text).replace("50ms", "20s");
    let proxy = Proxy::start_with("haproxy", &limiter, &mut run_haproxy(), in_debians);
    assert_eq!(users(proxy.id()), ["haproxy"]);
    let root = fs::read_link(format!("/proc/{}/root", proxy.id())).unwrap();
    assert_eq!(root, Path::new("/var/lib/haproxy"));
    keeps_out_who_hammers(&proxy, true);
    leaves_the_rest_alone(&proxy);
    stays_open_without_us(&proxy, &mut limiter);
}

/// nginx runs its workers with `user www-data`, which needs root.
#[test]
fn nginx_keeps_out_who_hammers_in_debians_configuration() {
    let mut limiter = Limiter::start(403);
    let in_debians = |file: &Path, text: &str| in_debians_nginx(file, text).replace("50ms", "20s");
    let proxy = Proxy::start_with("nginx", &limiter, &mut run_nginx(), in_debians);
    assert!(users(proxy.id()).contains(&"www-data".to_owned()));
    keeps_out_who_hammers(&proxy, true);
    leaves_the_rest_alone(&proxy);
    stays_open_without_us(&proxy, &mut limiter);
}

#[test]
fn no_request_gets_past_nginx() {
    let limiter = Limiter::start_with(403, hostile::RULES);
    let proxy = nginx(&limiter);
    none_is_served("nginx", &proxy, &limiter);
}

#[test]
fn haproxys_clients_are_limited_one_by_one() {
    for version in [
        "send-proxy",
        "send-proxy-v2",
        "send-proxy-v2-ssl-cn proxy-v2-options crc32c",
    ] {
        let server = balanced_server("");
        let mut command = program("/usr/sbin/haproxy");
        command.args(["-db", "-f", "balancer.cfg"]);
        let balancer = Balancer::start("haproxy/balancer.cfg", &server, &mut command, |text| {
            text.replace("send-proxy-v2", version)
                .replace("check", "check inter 100ms")
        });
        each_client_is_limited(&balancer, &server);
        // In version 2, HAProxy's health checks name no client.
        if version != "send-proxy" {
            support::until("it was checked", || heads(&server, "local") > 0);
        }
    }
}

#[test]
fn nginxs_clients_are_limited_one_by_one() {
    let server = balanced_server("");
    let mut command = program("/usr/sbin/nginx");
    let module = "load_module /usr/lib/nginx/modules/ngx_stream_module.so; daemon off;";
    command.args(["-p", ".", "-c", "balancer.conf", "-g", module]);
    let balancer = Balancer::start("nginx/balancer.conf", &server, &mut command, str::to_owned);
    each_client_is_limited(&balancer, &server);
}

/// `auth_request` makes a 500 of a denial with another status than 401 and 403, unless the recipe changes it.
#[test]
fn nginx_denies_by_any_status() {
    for deny_status in [401, 429, 503] {
        let limiter = Limiter::start(deny_status);
        let proxy = nginx(&limiter);
        let seen: Vec<u16> = (0..3).map(|_| proxy.login(HAMMERING, "").status).collect();
        assert_eq!(seen, [200, 200, 200]);
        let denied = proxy.login(HAMMERING, "");
        assert_eq!(
            (denied.status, denied.header("ratelimit").is_some()),
            (429, true)
        );
        assert!(denied.header("retry-after").is_some(), "{denied:?}");
    }
}

#[test]
fn both_serve_with_a_wrong_token() {
    for (recipe, mut command) in [("nginx", run_nginx()), ("haproxy", run_haproxy())] {
        let limiter = limiter_with_a_token();
        serves_with_a_wrong_token(&Proxy::start(recipe, &limiter, &mut command));
    }
}

#[test]
fn both_keep_their_own_token() {
    for (recipe, mut command) in [("nginx", run_nginx()), ("haproxy", run_haproxy())] {
        let limiter = limiter_with_a_token();
        let change = |_: &Path, text: &str| with_the_token(text);
        keeps_its_own_token(&Proxy::start_with(recipe, &limiter, &mut command, change));
    }
}

#[test]
fn no_request_gets_past_haproxy() {
    let limiter = Limiter::start_with(429, hostile::RULES);
    let proxy = haproxy(&limiter);
    none_is_served("HAProxy", &proxy, &limiter);
}

/// Runs the lines of contrib/redis that call the script in a language; they must print true.
fn run_script(language: &str, file: &str, run: &[&str], wrap: fn(&str) -> String) {
    let redis = support::redis::Redis::start();
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/redis");
    let page = fs::read_to_string(contrib.join("README.md")).unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    let (lines, _) = rest.split_once("```").unwrap();
    let source = wrap(lines).replace("6379", &redis.address.port().to_string());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    fs::write(&path, &source).unwrap();
    fs::copy(
        contrib.join("recent-average.lua"),
        folder.path().join("recent-average.lua"),
    )
    .unwrap();
    let mut command = program(run[0]);
    // Debian's packages of Go libraries are a GOPATH.
    command
        .args(&run[1..])
        .arg(&path)
        .current_dir(folder.path())
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .env("GOCACHE", folder.path().join("go"));
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(
        printed == "true\n" || printed == "bool(true)\n",
        "{printed}{problem}{source}"
    );
}

#[test]
fn the_script_for_redis_is_called_from_php() {
    run_script("php", "script.php", &["/usr/bin/php"], str::to_owned);
}

#[test]
fn the_script_for_redis_is_called_from_ruby() {
    run_script("ruby", "script.rb", &["/usr/bin/ruby"], str::to_owned);
}

#[test]
fn the_script_for_redis_is_called_from_go() {
    let wrap = |lines: &str| {
        format!(
            "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n\n\t\"github.com/gomodule/redigo/redis\"\n)\n\n\
             func main() {{\n\tc, _ := redis.Dial(\"tcp\", \"127.0.0.1:6379\")\n{lines}}}\n"
        )
    };
    run_script("go", "script.go", &["/usr/bin/go", "run"], wrap);
}
