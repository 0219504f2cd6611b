//! The recipe of `contrib/` for nginx, run by Debian's: `scripts/gate` installs it and runs this.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;
use std::process::Command;

use support::proxy::{Limiter, Proxy, keeps_out_who_hammers, leaves_the_rest_alone};

fn nginx(limiter: &Limiter) -> Proxy {
    const PROGRAM: &str = "/usr/sbin/nginx";
    assert!(Path::new(PROGRAM).exists(), "{PROGRAM} is missing: scripts/gate installs it");
    let mut command = Command::new(PROGRAM);
    command.args(["-p", ".", "-c", "nginx.conf", "-g", "daemon off; master_process off;"]);
    Proxy::start("nginx", limiter, &mut command)
}

#[test]
fn nginx_keeps_out_who_hammers() {
    let limiter = Limiter::start(403);
    let proxy = nginx(&limiter);
    keeps_out_who_hammers(&proxy, true);
    leaves_the_rest_alone(&proxy);
}
