//! The recipes of `contrib/` for nginx and HAProxy, run by Debian's: `scripts/gate` installs them and
//! runs this.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;
use std::process::Command;

use support::hostile::{self, none_is_served};
use support::proxy::{
    HAMMERING, Limiter, Proxy, keeps_out_who_hammers, leaves_the_rest_alone, stays_open_without_us,
};

fn program(path: &str) -> Command {
    assert!(Path::new(path).exists(), "{path} is missing: scripts/gate installs it");
    Command::new(path)
}

fn nginx(limiter: &Limiter) -> Proxy {
    let mut command = program("/usr/sbin/nginx");
    command.args(["-p", ".", "-c", "nginx.conf", "-g", "daemon off; master_process off;"]);
    Proxy::start("nginx", limiter, &mut command)
}

fn haproxy(limiter: &Limiter) -> Proxy {
    let mut command = program("/usr/sbin/haproxy");
    Proxy::start("haproxy", limiter, command.args(["-db", "-f", "haproxy.cfg"]))
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

#[test]
fn haproxy_stays_open_without_us() {
    let mut limiter = Limiter::start(429);
    let proxy = haproxy(&limiter);
    stays_open_without_us(&proxy, &mut limiter);
}

#[test]
fn no_request_gets_past_nginx() {
    let limiter = Limiter::start_with(403, hostile::RULES);
    let proxy = nginx(&limiter);
    none_is_served("nginx", &proxy, &limiter);
}

/// `auth_request` makes a 500 of this denial.
#[test]
fn nginx_denies_by_any_status() {
    for deny_status in [401, 429, 503] {
        let limiter = Limiter::start(deny_status);
        let proxy = nginx(&limiter);
        let seen: Vec<u16> = (0..4).map(|_| proxy.login(HAMMERING, "").status).collect();
        assert_eq!(seen, [200, 200, 200, if deny_status == 401 { 401 } else { 429 }]);
    }
}

#[test]
fn no_request_gets_past_haproxy() {
    let limiter = Limiter::start_with(429, hostile::RULES);
    let proxy = haproxy(&limiter);
    none_is_served("HAProxy", &proxy, &limiter);
}
