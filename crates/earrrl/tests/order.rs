//! Requests in a known order over two threads: none is judged earlier than the one before.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use earrrl::{Cost, Decision, Limiter, Mode, Rule};

const TURNS: usize = 3_000;
/// The client of the ordered requests. All others have greater numbers.
const SHARED: u64 = 0;

type Decisions = Vec<Decision>;

/// Passes the decisions so far from thread to thread; the holder adds one to them.
fn take_turns(
    limiter: &Limiter<u64>,
    thread: u64,
    inbox: &Receiver<Decisions>,
    outbox: &Sender<Decisions>,
) -> Option<Decisions> {
    while let Ok(mut decisions) = inbox.recv() {
        if decisions.len() == TURNS {
            return Some(decisions);
        }
        // A clock's reading is only used again by a thread that decides in a loop.
        for other in 0..decisions.len() as u64 % 64 {
            let _ = limiter.check(&(1 + thread * 64 + other));
        }
        decisions.push(limiter.check(&SHARED).decision());
        // The other thread has ended once it holds all decisions.
        outbox.send(decisions).ok()?;
    }
    None
}

/// Returns the decisions on requests of one client that two threads sent in turns, while `busy` other
/// threads keep the processors busy.
fn decide_in_turns(rule: &Rule, busy: usize) -> Decisions {
    let limiter: Limiter<u64> = Limiter::builder(rule.clone())
        .capacity(1_000)
        .build()
        .unwrap();
    let limiter = &limiter;
    let done = &AtomicBool::new(false);
    let (to_one, one) = channel();
    let (to_two, two) = channel();
    to_one.send(Vec::with_capacity(TURNS)).unwrap();
    thread::scope(|scope| {
        for _ in 0..busy {
            scope.spawn(move || while !done.load(Relaxed) {});
        }
        let first = scope.spawn(move || take_turns(limiter, 0, &one, &to_two));
        let second = scope.spawn(move || take_turns(limiter, 1, &two, &to_one));
        let [first, second] = [first, second].map(|thread| thread.join().unwrap());
        done.store(true, Relaxed);
        first.or(second).unwrap()
    })
}

#[test]
fn ordered_requests_of_two_threads_are_judged_in_their_order() {
    for (text, busy) in [
        ("gcra 100/s burst=1000", 0),
        ("gcra 100/s burst=1000", 3),
        ("recent-average 100/s half-life=10s leaky", 3),
        ("recent-average 100/s half-life=10s strict", 0),
    ] {
        let rule: Rule = text.parse().unwrap();
        let decisions = decide_in_turns(&rule, busy);
        let earlier = decisions
            .windows(2)
            .filter(|pair| pair[1].at < pair[0].at)
            .count();
        assert_eq!(earlier, 0, "{text}");
        let mut state = None;
        for decision in &decisions {
            let limit = rule.limit();
            let expected = limit.decide(state, decision.at, Cost::ONE, Mode::Check);
            state = expected.0;
            assert_eq!(*decision, expected.1, "{text}");
        }
    }
}
