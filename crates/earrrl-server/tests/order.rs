//! Requests in a known order over two connections, on a busy machine.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use earrrl::{Cost, Mode, Nanos, Rule};

use crate::support::TestServer;
use crate::support::resp::{Client, Reply, encode};

const TURNS: usize = 2_000;
const RULE: &str = "gcra 100/s burst=1000";

/// Returns the instant of a decision and the remaining quota after it.
fn figures(reply: Reply) -> (Nanos, u64) {
    let pairs = reply.pairs();
    let text = |name: &str| match pairs.iter().find(|(known, _)| known == name) {
        Some((_, Reply::Bulk(text))) => String::from_utf8(text.clone()).unwrap(),
        other => panic!("{name}: {other:?}"),
    };
    let t0 = text("t0");
    let (secs, fraction) = t0.split_once('.').unwrap_or((&t0, ""));
    let nanos: u64 = format!("{secs}{fraction:0<9}").parse().unwrap();
    (Nanos::new(nanos), text("remaining").parse().unwrap())
}

/// Sends a request of the client `shared` behind some of other clients, in one pipeline.
fn ask(client: &mut Client, others: usize) -> (Nanos, u64) {
    let mut pipeline = Vec::new();
    for nth in 0..others {
        pipeline.extend(encode(&[b"EARRRL.CHECK", b"r", nth.to_string().as_bytes()]));
    }
    pipeline.extend(encode(&[b"EARRRL.CHECK", b"r", b"shared"]));
    client.send(&pipeline);
    (0..others).for_each(|_| drop(client.reply()));
    figures(client.reply())
}

#[test]
fn ordered_requests_of_two_connections_are_judged_in_their_order() {
    let config = format!("[[rule]]\nname = \"r\"\nlimit = \"{RULE}\"\nkey = \"user\"\n");
    let server = TestServer::start(&config);
    let mut clients = [server.resp(), server.resp()];
    let done = &AtomicBool::new(false);
    let answers: Vec<_> = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || while !done.load(Relaxed) {});
        }
        let answers = (0..TURNS)
            .map(|turn| ask(&mut clients[turn % 2], turn % 17))
            .collect();
        done.store(true, Relaxed);
        answers
    });
    let rule: Rule = RULE.parse().unwrap();
    let mut state = None;
    let mut before = Nanos::ZERO;
    for (at, remaining) in answers {
        assert!(at >= before, "{at:?} after {before:?}");
        let (after, decision) = rule.limit().decide(state, at, Cost::ONE, Mode::Check);
        (state, before) = (after, at);
        assert_eq!(remaining, decision.remaining);
    }
}
