//! Tests the recipes of `contrib/` for Caddy, Traefik and Envoy with the real proxies. `debian.rs`
//! tests those for nginx and HAProxy.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

use crate::support::hostile::{self, none_is_served};
use crate::support::proxy::{
    Limiter, Proxy, keeps_its_own_token, keeps_out_who_hammers, leaves_the_rest_alone,
    limiter_with_a_token, serves_with_a_wrong_token, stays_closed_without_us,
    stays_open_while_we_hang, stays_open_without_us, with_the_token,
};
use crate::support::{grpc, installed};
use earrrl_server::protobuf::ratelimit::{RateLimitRequest, RateLimitResponse};

fn run_caddy() -> Command {
    let mut command = Command::new(installed("bin/caddy"));
    command.args(["run", "--adapter", "caddyfile", "--config", "Caddyfile"]);
    command
}

fn caddy(limiter: &Limiter) -> Proxy {
    Proxy::start("caddy", limiter, &mut run_caddy())
}

fn run_traefik() -> Command {
    let mut command = Command::new(installed("bin/traefik"));
    command.args(["--configFile", "traefik.yml"]);
    command
}

fn traefik(limiter: &Limiter) -> Proxy {
    Proxy::start("traefik", limiter, &mut run_traefik())
}

#[test]
fn caddy_keeps_out_who_hammers() {
    let limiter = Limiter::start(429);
    let proxy = caddy(&limiter);
    keeps_out_who_hammers(&proxy, true);
    leaves_the_rest_alone(&proxy);
}

#[test]
fn caddy_stays_open_without_us() {
    let mut limiter = Limiter::start(429);
    let proxy = caddy(&limiter);
    stays_open_without_us(&proxy, &mut limiter);
}

#[test]
fn traefik_keeps_out_who_hammers() {
    let limiter = Limiter::start(429);
    let proxy = traefik(&limiter);
    keeps_out_who_hammers(&proxy, false);
    leaves_the_rest_alone(&proxy);
}

fn run_envoy(config: &str) -> Command {
    let mut command = Command::new(installed("bin/envoy"));
    command.args([
        "--use-dynamic-base-id",
        "--concurrency",
        "1",
        "--log-level",
        "warn",
    ]);
    command.args(["-c", config]);
    command
}

fn envoy(limiter: &Limiter, config: &str) -> Proxy {
    Proxy::start("envoy", limiter, &mut run_envoy(config))
}

#[test]
fn while_we_hang_all_stay_open() {
    let recipes = [
        ("caddy", run_caddy()),
        ("traefik", run_traefik()),
        ("envoy", run_envoy("grpc.yaml")),
        ("envoy", run_envoy("http.yaml")),
    ];
    for (recipe, mut command) in recipes {
        let limiter = Limiter::start(429);
        let as_it_is = |_: &std::path::Path, text: &str| text.to_owned();
        let proxy = Proxy::start_with(recipe, &limiter, &mut command, as_it_is);
        stays_open_while_we_hang(&proxy, &limiter);
    }
}

/// For status 429 Envoy would send UNAVAILABLE, upon which gRPC clients retry at once.
#[test]
fn envoys_clients_of_grpc_see_that_the_resource_is_exhausted() {
    for config in ["grpc.yaml", "http.yaml"] {
        let limiter = Limiter::start(429);
        let proxy = envoy(&limiter, config);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let codes = runtime.block_on(async {
            let channel = grpc::connect(proxy.address).await;
            let mut codes = Vec::new();
            for _ in 0..4 {
                let request = RateLimitRequest::default();
                let answer: Result<RateLimitResponse, _> =
                    grpc::call(&channel, "/login", request).await;
                codes.push(answer.unwrap_err().code());
            }
            codes
        });
        let exhausted = tonic::Code::ResourceExhausted;
        let denied = codes
            .iter()
            .map(|code| *code == exhausted)
            .collect::<Vec<_>>();
        assert_eq!(denied, [false, false, false, true], "{config}: {codes:?}");
    }
}

#[test]
fn envoy_keeps_out_who_hammers() {
    for config in ["grpc.yaml", "http.yaml"] {
        let limiter = Limiter::start(429);
        let proxy = envoy(&limiter, config);
        keeps_out_who_hammers(&proxy, true);
        leaves_the_rest_alone(&proxy);
    }
}

#[test]
fn envoy_stays_open_without_us() {
    for config in ["grpc.yaml", "http.yaml"] {
        let mut limiter = Limiter::start(429);
        let proxy = envoy(&limiter, config);
        stays_open_without_us(&proxy, &mut limiter);
    }
}

#[test]
fn traefik_stays_open_without_us() {
    let mut limiter = Limiter::start(429);
    let proxy = traefik(&limiter);
    stays_open_without_us(&proxy, &mut limiter);
}

/// Over HTTP, Envoy denies by any status but 5xx.
#[test]
fn the_proxies_serve_with_a_wrong_token() {
    let limiter = limiter_with_a_token();
    for proxy in [
        caddy(&limiter),
        traefik(&limiter),
        envoy(&limiter, "grpc.yaml"),
    ] {
        serves_with_a_wrong_token(&proxy);
    }
}

#[test]
fn the_proxies_keep_their_own_token() {
    for (recipe, mut command) in [
        ("caddy", run_caddy()),
        ("traefik", run_traefik()),
        ("envoy", run_envoy("grpc.yaml")),
    ] {
        let limiter = limiter_with_a_token();
        let change = |_: &Path, text: &str| with_the_token(text);
        keeps_its_own_token(&Proxy::start_with(recipe, &limiter, &mut command, change));
    }
}

/// The recipes are changed as the table in docs/proxies.md says.
#[test]
fn the_proxies_can_refuse_requests_without_us() {
    let statuses = |while_gone| (429, while_gone);
    stays_closed_without_us("caddy", &mut run_caddy(), statuses(503), |text| {
        let last = "# earrrl does not answer: serve without it.\n";
        let Some((before, after)) = text.split_once(last) else {
            return text.to_owned();
        };
        let (_two_lines, after) = after.split_once("\n\t}").unwrap();
        format!("{before}respond 503\n\t}}{after}")
    });
    for config in ["grpc.yaml", "http.yaml"] {
        stays_closed_without_us("envoy", &mut run_envoy(config), statuses(403), |text| {
            text.replace("failure_mode_allow: true", "failure_mode_allow: false")
        });
    }
    stays_closed_without_us("traefik", &mut run_traefik(), statuses(502), |text| {
        text.replace("      middlewares: [open]\n", "")
    });
}

#[test]
fn no_request_gets_past_envoy() {
    let limiter = Limiter::start_with(429, hostile::RULES);
    let proxy = envoy(&limiter, "grpc.yaml");
    none_is_served("Envoy", &proxy, &limiter);
}
