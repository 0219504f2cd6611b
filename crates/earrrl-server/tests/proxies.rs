//! The recipes of `contrib/` for Caddy, Traefik and Envoy, run by them. nginx's and HAProxy's:
//! `debian.rs`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::Command;

use crate::support::hostile::{self, none_is_served};
use crate::support::installed;
use crate::support::proxy::{
    Limiter, Proxy, keeps_out_who_hammers, leaves_the_rest_alone, stays_open_without_us,
};

fn caddy(limiter: &Limiter) -> Proxy {
    let mut command = Command::new(installed("bin/caddy"));
    command.args(["run", "--adapter", "caddyfile", "--config", "Caddyfile"]);
    Proxy::start("caddy", limiter, &mut command)
}

fn traefik(limiter: &Limiter) -> Proxy {
    let mut command = Command::new(installed("bin/traefik"));
    Proxy::start("traefik", limiter, command.args(["--configFile", "traefik.yml"]))
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

fn envoy(limiter: &Limiter, config: &str) -> Proxy {
    let mut command = Command::new(installed("bin/envoy"));
    command.args(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warn"]);
    Proxy::start("envoy", limiter, command.args(["-c", config]))
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

#[test]
fn no_request_gets_past_envoy() {
    let limiter = Limiter::start_with(429, hostile::RULES);
    let proxy = envoy(&limiter, "grpc.yaml");
    none_is_served("Envoy", &proxy, &limiter);
}
