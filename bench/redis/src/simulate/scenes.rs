//! What near rules admit beside one place, in scenes that are hard for them.

use std::time::Duration;

use earrrl_redis::Consistency;

use super::{Load, Scene, run};
use crate::support::Server;

const RULES: [(&str, [&str; 2]); 5] = [
    ("gcra", ["gcra 10/s burst=20", "gcra 1.5/s burst=20"]),
    ("gcra long", ["gcra 10/s burst=600", "gcra 1.5/s burst=90"]),
    ("average", ["recent-average 10/s half-life=10s leaky", "recent-average 1.5/s half-life=10s leaky"]),
    ("window", ["fixed-window 600/1m", "fixed-window 90/1m"]),
    ("strict", ["recent-average 10/s half-life=10s", "recent-average 1.5/s half-life=10s"]),
];

pub async fn run_goal(filter: &[&str]) {
    let server = Server::start(&[]).await;
    println!("{:28} {:>4} {:>6} {:>5} {:>7} {:>6} {:>6} {:>6}", "", "load", "home", "serv", "admit", "calls", "trips", "cmds");
    for (name, rules) in RULES {
        if filter.iter().any(|word| !name.contains(word)) { continue; }
        for (rule, load) in rules.iter().zip(["45%", "300%"]) {
            for home in [None, Some(0.9)] {
                for servers in [2, 4, 8] {
                    let loads = [Load { clients: 10, rate: 4.5, burst: 1, home }];
                    let scene = Scene {
                        rule, consistency: Consistency::Near, servers, sync: Duration::from_millis(100),
                        loads: &loads, lasts: Duration::from_secs(120), partitioned: None, starts: false,
                    };
                    let out = run(&server, scene, 7).await;
                    println!("{rule:28.28} {load:>4} {:>6} {servers:5} {:7.3} {:6.3} {:6.3} {:6.2}",
                        if home.is_some() { "skew" } else { "fair" },
                        out.share(), out.each(out.calls), out.each(out.trips), out.each(out.commands));
                }
            }
        }
    }
}

pub async fn scenes(filter: &[&str]) { run_goal(filter).await }
