//! The recipes of `contrib/` for nginx and HAProxy, run by Debian's: `scripts/gate` installs them and
//! runs this.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;
use std::process::Command;

use support::proxy::{
    Limiter, Proxy, keeps_out_who_hammers, leaves_the_rest_alone, stays_open_without_us,
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
