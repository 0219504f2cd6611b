//! What near rules admit beside one place, in scenes that are hard for them, and what they ask of Redis.

use std::time::Duration;

use earrrl_redis::Consistency;

use super::{Load, Outcome, Scene, Time, run};
use crate::support::Server;

/// Rules with 10 requests a second, and with 1.5.
const RULES: [[&str; 2]; 6] = [
    ["gcra 10/s burst=20", "gcra 1.5/s burst=20"],
    ["gcra 10/s burst=600", "gcra 1.5/s burst=90"],
    [
        "recent-average 10/s half-life=10s leaky",
        "recent-average 1.5/s half-life=10s leaky",
    ],
    [
        "recent-average 10/s half-life=1m leaky",
        "recent-average 1.5/s half-life=1m leaky",
    ],
    ["fixed-window 600/1m", "fixed-window 90/1m"],
    [
        "recent-average 10/s half-life=1m strict",
        "recent-average 1.5/s half-life=1m strict",
    ],
];
/// Ten clients with 4.5 requests a second each, which go to all servers alike, or nine of ten to one.
const FAIR: Load = Load {
    clients: 10,
    rate: 4.5,
    burst: 1,
    home: None,
};
const SKEWED: Load = Load {
    home: Some(0.9),
    ..FAIR
};
const BURSTS: Load = Load { burst: 10, ..FAIR };
const SYNC: Duration = Duration::from_millis(100);
const LASTS: Duration = Duration::from_secs(240);

fn scene<'a>(rule: &'a str, servers: usize, loads: &'a [Load]) -> Scene<'a> {
    let consistency = Consistency::Near;
    let time = Time::Simulated;
    let sync = SYNC;
    let lasts = LASTS;
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

fn cell(outcome: &Outcome) -> String {
    let admitted = 100.0 * outcome.share();
    let calls = outcome.each(outcome.calls);
    format!(
        " {admitted:5.1} % {calls:5.3} {:4.1} |",
        outcome.each(outcome.commands)
    )
}

/// Runs each load on 2, 4 and 8 servers. Returns a cell for each.
async fn cells(
    server: &Server,
    rule: &str,
    loads: [Load; 2],
    lasts: Duration,
    seed: u64,
) -> String {
    let mut line = String::new();
    for load in loads {
        for servers in [2, 4, 8] {
            let loads = [load];
            let scene = Scene {
                lasts,
                ..scene(rule, servers, &loads)
            };
            line += &cell(&run(server, scene, seed).await);
        }
    }
    line
}

/// Prints the admitted part of what one place admits, the calls of scripts a decision, and the commands a decision.
pub async fn print() {
    let server = Server::start(&[]).await;
    println!("of one place, calls and commands a decision; 4.5 requests a second, sync 100 ms");
    println!("fair 2, 4, 8 servers; skewed 2, 4, 8 servers");
    for (place, of_limit) in [(0, "45 %"), (1, "300 %")] {
        for rules in RULES {
            let cells = cells(&server, rules[place], [FAIR, SKEWED], LASTS, 7).await;
            println!("| `{}` | {of_limit} |{cells}", rules[place]);
        }
    }
    println!("\n4 servers; sync 0.1, 1, 5 s");
    for (name, rule, load, partitioned, time) in [
        ("fair", "gcra 10/s burst=20", FAIR, None, Time::Simulated),
        ("fair", "gcra 1.5/s burst=20", FAIR, None, Time::Simulated),
        (
            "skewed",
            "gcra 10/s burst=20",
            SKEWED,
            None,
            Time::Simulated,
        ),
        (
            "skewed",
            "gcra 1.5/s burst=20",
            SKEWED,
            None,
            Time::Simulated,
        ),
        (
            "bursts of 10",
            "gcra 10/s burst=20",
            BURSTS,
            None,
            Time::Simulated,
        ),
        (
            "bursts of 10",
            "gcra 1.5/s burst=20",
            BURSTS,
            None,
            Time::Simulated,
        ),
        (
            "strict",
            "recent-average 10/s half-life=10s strict",
            FAIR,
            None,
            Time::Simulated,
        ),
        (
            "strict",
            "recent-average 4/s half-life=10s strict",
            FAIR,
            None,
            Time::Simulated,
        ),
        (
            "a partition of 30 s",
            "gcra 10/s burst=20",
            FAIR,
            Some((60, 90)),
            Time::Simulated,
        ),
        (
            "a partition of 30 s",
            "gcra 1.5/s burst=20",
            FAIR,
            Some((60, 90)),
            Time::Simulated,
        ),
        (
            "the first 10 s",
            "gcra 10/s burst=20",
            FAIR,
            None,
            Time::Started,
        ),
        (
            "the first 10 s",
            "gcra 1.5/s burst=20",
            FAIR,
            None,
            Time::Started,
        ),
    ] {
        let mut line = format!("| {name} | `{rule}` |");
        for sync in [100, 1000, 5000].map(Duration::from_millis) {
            let loads = [load];
            let lasts = if time == Time::Started {
                Duration::from_secs(10)
            } else {
                LASTS
            };
            let scene = Scene {
                sync,
                partitioned,
                time,
                lasts,
                ..scene(rule, 4, &loads)
            };
            line += &cell(&run(&server, scene, 11).await);
        }
        println!("{line}");
    }
}

/// Prints what a hundred new clients are admitted, and what that asks of Redis, in their first 10 s.
pub async fn print_new_clients() {
    let server = Server::start(&[]).await;
    println!("of one place, calls and commands a decision; the first 10 s of clients at 45 %");
    println!("fair 2, 4, 8 servers; skewed 2, 4, 8 servers");
    for (rule, rate) in [
        ("gcra 2/s burst=6", 0.9),
        ("gcra 6/s burst=12", 2.7),
        ("gcra 6/s burst=24", 2.7),
        ("gcra 10/s burst=20", 4.5),
        ("gcra 10/s burst=100", 4.5),
        ("recent-average 10/s half-life=2s leaky", 4.5),
        ("fixed-window 60/10s", 2.7),
    ] {
        let loads = [FAIR, SKEWED].map(|load| Load {
            clients: 100,
            rate,
            ..load
        });
        let cells = cells(&server, rule, loads, Duration::from_secs(10), 5).await;
        println!("| `{rule}` |{cells}");
    }
}

/// Prints the same scenes in simulated and in real time.
pub async fn check_model() {
    let server = Server::start(&[]).await;
    println!("of one place, calls and commands a decision; simulated, real");
    for rule in [
        "gcra 10/s burst=20",
        "gcra 1.5/s burst=20",
        "recent-average 10/s half-life=10s leaky",
    ] {
        for servers in [2, 4, 8] {
            let mut line = format!("| `{rule}` | {servers} |");
            for time in [Time::Simulated, Time::Real] {
                let lasts = Duration::from_secs(20);
                let scene = Scene {
                    time,
                    lasts,
                    ..scene(rule, servers, &[FAIR])
                };
                line += &cell(&run(&server, scene, 13).await);
            }
            println!("{line}");
        }
    }
}
