//! Exact and near rules on fleets of up to a thousand servers: what a sample of clients admits and asks of Redis, and
//! what that makes for up to a hundred million clients. Redis keeps each client by itself, so calls and bytes grow in
//! proportion to the clients.

use std::time::Duration;

use earrrl_redis::Consistency;

use super::{Load, Outcome, Scene, Time, run};
use crate::support::Server;

/// Limits, and how much faster their clients are than those of [`mixed`].
const RULES: [(&str, f64); 2] = [("gcra 1/s burst=60", 1.0), ("gcra 10/s burst=600", 10.0)];
const STRICT: &str = "recent-average 1/s half-life=1m strict";
/// The decisions a second of one shard with exact rules, at 80 % of a processor (`docs/sizing.md`).
const SHARD: f64 = 120_000.0;
/// The bytes of a client's record (`docs/sizing.md`).
const RECORD: f64 = 145.0;

/// Requests a second of a client, in the mean of those of [`mixed`].
const RATE: f64 = 0.1605;

/// Clients at a tenth, at 45 % and at three times of a limit of `limit` a second, in the proportion of 90 : 9 : 1.
fn mixed(limit: f64, home: Option<f64>) -> [Load; 3] {
    [(180, 0.1), (18, 0.45), (2, 3.0)].map(|(clients, load)| {
        let rate = load * limit;
        Load {
            clients,
            rate,
            burst: 1,
            home,
        }
    })
}

fn scene<'a>(rule: &'a str, servers: usize, loads: &'a [Load]) -> Scene<'a> {
    let consistency = Consistency::Near;
    let time = Time::Simulated;
    let sync = Duration::from_millis(100);
    let lasts = Duration::from_secs(300);
    let partitioned = None;
    Scene {
        rule,
        consistency,
        servers,
        sync,
        loads,
        lasts,
        partitioned,
        time,
    }
}

pub async fn print() {
    let server = Server::start(&["--maxclients", "20000"]).await;
    for (rule, limit) in RULES {
        println!("{rule}, {:.2} requests a second and client", RATE * limit);
        let loads = mixed(limit, None);
        let exact = Scene {
            consistency: Consistency::Exact,
            ..scene(rule, 10, &loads)
        };
        let exact = run(&server, exact, 3).await;
        print_row("exact", limit, &exact, exact.micros);
        for (name, home) in [
            ("near, one in ten elsewhere", Some(0.9)),
            ("near, at random", None),
        ] {
            for servers in [10, 100, 1000] {
                let outcome = run(&server, scene(rule, servers, &mixed(limit, home)), 3).await;
                print_row(
                    &format!("{name} | {servers}"),
                    limit,
                    &outcome,
                    exact.micros,
                );
            }
        }
    }
    println!("{STRICT}, ten times the limit");
    for (name, home) in [("one in ten elsewhere", Some(0.9)), ("at random", None)] {
        for servers in [2, 10, 100, 1000] {
            println!(
                "| {name} | {servers} | {} |",
                staleness(&server, servers, home).await
            );
        }
    }
}

/// Prints what a sample of clients has made, and what 1, 10 and 100 million of them would make: calls a second, shards
/// and bytes.
fn print_row(name: &str, limit: f64, outcome: &Outcome, exact_micros: f64) {
    let calls = outcome.each(outcome.calls);
    let share = 100.0 * outcome.share();
    let bytes = RECORD + outcome.claims;
    print!(
        "| {name} | {calls:.2} | {:.1} | {share:.1} % | {bytes:.0} |",
        outcome.micros / exact_micros
    );
    for clients in [1e6, 1e7, 1e8] {
        let calls = clients * RATE * limit * calls;
        let shards = calls * outcome.micros / exact_micros / SHARD;
        print!(
            " {:.0}k, {:.0}, {:.1} GB |",
            calls / 1e3,
            shards.ceil(),
            clients * bytes / 1e9
        );
    }
    println!();
}

/// Returns the median and the largest time for which clients at ten times a strict limit were admitted after one place
/// would have banned them.
async fn staleness(server: &Server, servers: usize, home: Option<f64>) -> String {
    let loads = [Load {
        clients: 10,
        rate: 10.0,
        burst: 1,
        home,
    }];
    let lasts = Duration::from_secs(60);
    let outcome = run(
        server,
        Scene {
            lasts,
            ..scene(STRICT, servers, &loads)
        },
        5,
    )
    .await;
    let stale = &outcome.stale;
    let median = stale.get(stale.len() / 2);
    let most = stale.last();
    let share = 100.0 * outcome.share();
    format!(
        "{:.1} s, {:.1} s, {share:.0} %",
        median.unwrap_or(&0.0),
        most.unwrap_or(&0.0)
    )
}
