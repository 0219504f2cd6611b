//! Tests tokens with names, scopes and rules: over HTTP, RESP and gRPC, and after reloads.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::thread;

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::command::earrrl;
use crate::support::resp::Reply;
use crate::support::{TestServer, grpc, parse};
use earrrl_server::config::access::Scope;
use earrrl_server::protobuf::authorization::{CheckRequest, CheckResponse};
use earrrl_server::protobuf::ratelimit::{RateLimitRequest, RateLimitResponse};

/// Returns a configuration with a token of each kind; `login` are the scopes and rules of the token
/// of that name.
fn config(login: &str) -> String {
    let token = |name: &str, permits: &str| {
        format!(
            "[[server.token]]\nname = \"{name}\"\ntoken = \"{name}-token-0123456789\"\n{permits}\n"
        )
    };
    let tokens = [
        token("proxy", "scopes = [\"check\"]"),
        token("login", login),
        token("root", "scopes = [\"admin\"]"),
    ];
    let rule = |name: &str| format!("[[rule]]\nname = \"{name}\"\nlimit = \"gcra 1/s burst=99\"\n");
    format!("{}{}{}", tokens.concat(), rule("login"), rule("api"))
}

const LOGIN: &str = "scopes = [\"check\", \"peek\", \"refund\"]\nrules = [\"login\"]";

/// Sends a request with a token of this name. Returns the status and the error of the response.
fn ask(server: &TestServer, token: &str, request: &str, body: &str) -> (u16, String) {
    let (method, path) = request.split_once(' ').unwrap();
    let mut client = server.http();
    client.token = Some(format!("{token}-token-0123456789"));
    let kind = "Content-Type: application/json\r\n";
    let answer = client.request(method, path, kind, body.as_bytes());
    let error = match answer.status {
        400.. => answer.json()["detail"].as_str().unwrap().to_owned(),
        _ => String::new(),
    };
    (answer.status, error)
}

#[test]
fn http_permits_what_the_token_is_for() {
    let server = TestServer::start(&config(LOGIN));
    let [login, api] =
        ["login", "api"].map(|rule| format!("{{\"rule\":\"{rule}\",\"key\":\"k\"}}"));
    let both = r#"{"rules":[{"rule":"login","key":"k"},{"rule":"api","key":"k"}]}"#;
    let attributes = r#"{"attributes":{"client":"192.0.2.7"}}"#;
    let refund = |rule: &str| format!("{{\"rule\":\"{rule}\",\"key\":\"k\",\"cost\":1}}");
    for (token, request, body, lacks) in [
        ("proxy", "POST /v1/check", &*api, ""),
        ("proxy", "POST /v1/check", attributes, ""),
        ("proxy", "GET /v1/authz", "", ""),
        ("proxy", "POST /v1/peek", &api, "lacks the scope \"peek\""),
        (
            "proxy",
            "POST /v1/charge",
            &api,
            "lacks the scope \"charge\"",
        ),
        (
            "proxy",
            "POST /v1/refund",
            &refund("api"),
            "lacks the scope \"refund\"",
        ),
        (
            "proxy",
            "GET /v1/clients/api/k",
            "",
            "lacks the scope \"peek\"",
        ),
        (
            "proxy",
            "DELETE /v1/clients/api/k",
            "",
            "lacks the scope \"reset\"",
        ),
        ("proxy", "GET /v1/rules", "", "lacks the scope \"peek\""),
        ("login", "POST /v1/check", &login, ""),
        ("login", "POST /v1/peek", &login, ""),
        ("login", "POST /v1/refund", &refund("login"), ""),
        ("login", "GET /v1/clients/login/k", "", ""),
        (
            "login",
            "POST /v1/check",
            &api,
            "has no access to the rule \"api\"",
        ),
        (
            "login",
            "POST /v1/check",
            both,
            "has no access to the rule \"api\"",
        ),
        (
            "login",
            "POST /v1/refund",
            &refund("api"),
            "has no access to the rule \"api\"",
        ),
        (
            "login",
            "GET /v1/clients/api/k",
            "",
            "has no access to the rule \"api\"",
        ),
        (
            "login",
            "DELETE /v1/clients/login/k",
            "",
            "lacks the scope \"reset\"",
        ),
        (
            "login",
            "POST /v1/check",
            attributes,
            "is limited to some rules",
        ),
        ("login", "GET /v1/authz", "", "is limited to some rules"),
        ("root", "POST /v1/charge", &api, ""),
        ("root", "DELETE /v1/clients/api/k", "", ""),
    ] {
        let (status, error) = ask(&server, token, request, body);
        if lacks.is_empty() {
            assert!(status < 300, "{token} {request}: {error}");
        } else {
            assert_eq!(status, 403, "{token} {request}");
            let expected = format!("the token \"{token}\" {lacks}");
            assert!(error.starts_with(&expected), "{token} {request}: {error}");
        }
    }
    let mut client = server.http();
    client.token = Some("login-token-0123456789".to_owned());
    let rules = client.get("/v1/rules").json();
    assert_eq!(rules["rules"].as_array().unwrap().len(), 1, "{rules}");
    let checks = format!("{{\"checks\":[{login},{api}]}}");
    let batch = client.post("/v1/check/batch", &checks).json();
    assert_eq!(batch["decisions"][0]["allowed"], true, "{batch}");
    assert_eq!(batch["decisions"][1]["status"], 403, "{batch}");
}

fn no_permission(token: &str, lacks: &str) -> Reply {
    Reply::Error(format!("NOPERM the token \"{token}\" {lacks}"))
}

#[test]
fn resp_permits_what_the_token_is_for() {
    let server = TestServer::start(&config(LOGIN));
    let ok = Reply::Simple("OK".into());
    let mut client = server.resp();
    assert_eq!(client.line("AUTH login-token-0123456789"), ok);
    for command in [
        "EARRRL.CHECK login k",
        "EARRRL.PEEK login k",
        "EARRRL.ALLOW login k",
    ] {
        assert!(
            !matches!(client.line(command), Reply::Error(_)),
            "{command}"
        );
    }
    assert_eq!(client.line("EARRRL.REFUND login k 1"), ok);
    assert_eq!(client.line("EARRRL.RULES").pairs().len(), 1);
    let some = "is limited to some rules, which this request does not name";
    for (command, lacks) in [
        ("EARRRL.CHARGE login k", "lacks the scope \"charge\""),
        ("EARRRL.RESET login k", "lacks the scope \"reset\""),
        ("EARRRL.CHECK api k", "has no access to the rule \"api\""),
        ("EARRRL.ALLOW api k", "has no access to the rule \"api\""),
        (
            "EARRRL.CHECK login k AND api k",
            "has no access to the rule \"api\"",
        ),
        ("EARRRL.REFUND api k 1", "has no access to the rule \"api\""),
        ("EARRRL.CHECKATTR client 192.0.2.7", some),
        ("CL.THROTTLE k 1 1 1", some),
        ("DEL k", "lacks the scope \"reset\""),
    ] {
        assert_eq!(
            client.line(command),
            no_permission("login", lacks),
            "{command}"
        );
    }
    // A transaction is no way around it.
    assert_eq!(client.line("MULTI"), ok);
    assert_eq!(
        client.line("EARRRL.CHECK api k"),
        Reply::Simple("QUEUED".into())
    );
    let refused = no_permission("login", "has no access to the rule \"api\"");
    assert_eq!(client.line("EXEC"), Reply::Array(vec![refused]));
}

#[test]
fn a_reload_narrows_and_revokes_tokens_of_open_connections() {
    let server = TestServer::start(&config(LOGIN));
    let mut redis = server.resp();
    redis.line("AUTH login-token-0123456789");
    let mut http = server.http();
    http.token = Some("login-token-0123456789".to_owned());
    assert_eq!(redis.line("EARRRL.PEEK login k").pairs()[0].0, "allowed");
    assert_eq!(http.get("/v1/clients/login/k").status, 200);

    let narrowed = config("scopes = [\"check\"]\nrules = [\"login\"]");
    server.server.reload(Ok(parse(&narrowed))).unwrap();
    let refused = no_permission("login", "lacks the scope \"peek\"");
    assert_eq!(redis.line("EARRRL.PEEK login k"), refused);
    assert_eq!(redis.line("EARRRL.CHECK login k").pairs()[0].0, "allowed");
    assert_eq!(http.get("/v1/clients/login/k").status, 403);

    let revoked = config(LOGIN).replace("\"login-token", "\"other-token");
    server.server.reload(Ok(parse(&revoked))).unwrap();
    let refused = Reply::Error("NOAUTH Authentication required.".into());
    assert_eq!(redis.line("EARRRL.CHECK login k"), refused);
    assert_eq!(http.get("/v1/clients/login/k").status, 401);
}

/// A client may learn from the rules that a reload is in force, and then use a token that came with it.
#[test]
fn the_tokens_of_a_reload_are_in_force_before_its_rules() {
    let generation = |nth: u64| {
        format!(
            "[server]\ncheck_token = \"token-of-reload-{nth:08}\"\n\
             [[rule]]\nname = \"r\"\nlimit = \"gcra 1/s burst={nth}\"\n"
        )
    };
    let server = TestServer::start(&generation(1));
    let server = &server.server;
    let last = 500;
    let in_force = || server.service.rules().get(b"r").unwrap().own.quota.units;
    let permits = |nth: u64| {
        let token = format!("token-of-reload-{nth:08}");
        server
            .tokens()
            .with(token.as_bytes())
            .permit(Scope::Check)
            .is_ok()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for nth in 2..=last {
                server.reload(Ok(parse(&generation(nth)))).unwrap();
            }
        });
        let mut known = 1;
        while known < last {
            known = in_force();
            let is_known = permits(known);
            // The next reload may have replaced the token meanwhile.
            assert!(
                is_known || permits(known + 1) || in_force() != known,
                "{known}"
            );
        }
    });
}

#[test]
fn grpc_permits_what_the_token_is_for() {
    let server = TestServer::start(&config("scopes = [\"check\"]\nrules = [\"login\"]"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ask = |token: &str| -> [Status; 2] {
        let token = MetadataValue::try_from(format!("Bearer {token}-token-0123456789")).unwrap();
        runtime.block_on(async {
            let channel = grpc::connect(server.grpc).await;
            let mut limits = tonic::Request::new(RateLimitRequest::default());
            limits.metadata_mut().insert("authorization", token.clone());
            let method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
            let limited =
                grpc::call::<RateLimitRequest, RateLimitResponse>(&channel, method, limits).await;
            let mut check = tonic::Request::new(CheckRequest::default());
            check.metadata_mut().insert("authorization", token);
            let method = "/envoy.service.auth.v3.Authorization/Check";
            let checked = grpc::call::<CheckRequest, CheckResponse>(&channel, method, check).await;
            [limited.unwrap_err(), checked.unwrap_err()]
        })
    };
    for status in ask("login") {
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        assert!(
            status
                .message()
                .starts_with("the token \"login\" is limited"),
            "{status}"
        );
    }
    // These requests are empty, so a permitted one is invalid.
    for status in ask("proxy") {
        assert!(
            !matches!(
                status.code(),
                Code::PermissionDenied | Code::Unauthenticated
            ),
            "{status}"
        );
    }
    for status in ask("wrong") {
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    }
}

#[test]
fn config_check_lists_tokens_without_their_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        earrrl(&["config", "check", file.to_str().unwrap()])
    };
    let admin = "[server]\nadmin_token = \"admin-token-0123456789\"\n";
    let outcome = check(&format!("{admin}{}", config(LOGIN)));
    let tokens: Vec<_> = outcome
        .out
        .lines()
        .filter_map(|line| line.strip_prefix("token "))
        .collect();
    assert_eq!(
        tokens,
        [
            "admin_token: admin; all rules",
            "proxy: check; all rules",
            "login: check, peek, refund; rules login",
            "root: admin; all rules",
        ]
    );
    assert!(!outcome.out.contains("0123456789"), "{}", outcome.out);
    for (login, mistake) in [
        (
            "scopes = []",
            "scopes: expected at least one of check, peek,",
        ),
        (
            "scopes = [\"chek\"]",
            "scopes: `chek` is none of check, peek,",
        ),
        ("", "missing field `scopes`"),
        (
            "scopes = [\"peek\"]\nrules = []",
            "rules: expected the names of rules",
        ),
        (
            "scopes = [\"peek\"]\nrules = [\"logn\"]",
            "rules: no rule is called \"logn\"",
        ),
        (
            "scopes = [\"peek\"]\ntoken_file = \"t\"",
            "token_file: token is set already",
        ),
    ] {
        let outcome = check(&config(login));
        assert!(outcome.err.contains(mistake), "{login}: {}", outcome.err);
    }
    for (text, mistake) in [
        (
            config(LOGIN).replace("name = \"root\"", "name = \"proxy\""),
            "another token is called",
        ),
        (
            config(LOGIN).replace("\"root-token", "\"proxy-token"),
            "is that of",
        ),
        (
            config(LOGIN).replace("name = \"root\"", "name = \"a b\""),
            "letters, digits",
        ),
        (
            config(LOGIN).replace("root-token-0123456789", "short"),
            "token: 5 bytes; expected 16",
        ),
        (
            config(LOGIN).replace("token = \"root-token-0123456789\"\n", ""),
            "token or token_file",
        ),
    ] {
        let outcome = check(&text);
        assert!(outcome.err.contains(mistake), "{mistake}: {}", outcome.err);
    }
}
