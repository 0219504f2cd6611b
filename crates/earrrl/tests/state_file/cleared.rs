//! Files that a process clears while others decide requests on them.

use rustix::process::Signal;

use super::process::{Process, Work, wait_until};
use super::{CAPACITY, FIVE, Scratch, open};

const CLIENTS: u64 = 2_000;

fn admits_five_of_each(limiter: &earrrl::Limiter<u64>) -> bool {
    let admitted = |client| {
        (0..7)
            .filter(|_| limiter.check(&client).is_allowed())
            .count()
    };
    (0..CLIENTS).all(|client| admitted(client) == 5)
}

#[test]
fn a_clear_forgets_the_clients_of_all_processes() {
    for rule in FIVE {
        let scratch = Scratch::new();
        let limiter = open(rule, &scratch.path(), CAPACITY).unwrap();
        let work = Work {
            rule,
            capacity: CAPACITY,
            clients: CLIENTS,
            requests: 6,
            seed: 1,
        };
        let mut process = Process::start(&scratch, work);
        process.go();
        assert_eq!(process.admitted(CLIENTS), [5; CLIENTS as usize], "{rule}");
        assert_eq!(limiter.clear() as u64, CLIENTS, "{rule}");
        assert!(admits_five_of_each(&limiter), "{rule}");
    }
}

/// A clear forgets the clients of all generations, whichever generation the limiter has opened.
#[test]
fn a_clear_forgets_the_clients_of_earlier_generations() {
    for (first_clears, rule) in FIVE
        .into_iter()
        .enumerate()
        .map(|(nth, rule)| (nth % 2 == 0, rule))
    {
        let scratch = Scratch::new();
        let first = open(rule, &scratch.path(), CAPACITY).unwrap();
        assert!(admits_five_of_each(&first), "{rule}");
        let second = open(rule, &scratch.path(), 2 * CAPACITY).unwrap();
        assert!(
            (0..CLIENTS / 2).all(|client| !second.check(&client).is_allowed()),
            "{rule}"
        );
        let clearing = if first_clears { &first } else { &second };
        assert_eq!(clearing.clear() as u64, CLIENTS, "{rule}");
        assert!(admits_five_of_each(&second), "{rule}");
        assert!(
            (0..CLIENTS).all(|client| !first.check(&client).is_allowed()),
            "{rule}"
        );
    }
}

/// A process decides without an end, and is killed when this one has cleared the file many times. No
/// client is admitted more than five times between two clears, and nothing remains of what was cleared.
#[test]
fn a_process_decides_while_another_clears() {
    const CLEARS: u64 = 10;
    for rule in FIVE {
        let scratch = Scratch::new();
        let limiter = open(rule, &scratch.path(), CAPACITY).unwrap();
        let capacity = CAPACITY;
        let requests = 1 << 40;
        let work = Work {
            rule,
            capacity,
            clients: CLIENTS,
            requests,
            seed: 1,
        };
        let mut process = Process::start(&scratch, work);
        process.go();
        for clear in 1..=CLEARS {
            wait_until(|| process.acknowledged() >= clear * CLIENTS / 2);
            limiter.clear();
        }
        process.signal(Signal::KILL);
        let admitted = process.admitted(CLIENTS);
        assert!(
            admitted.iter().all(|count| *count <= 5 * (CLEARS + 1)),
            "{rule}"
        );
        limiter.clear();
        assert!(admits_five_of_each(&limiter), "{rule}");
        drop(limiter);
        let swept = open(rule, &scratch.path(), CAPACITY)
            .unwrap()
            .swept()
            .unwrap();
        assert_eq!((swept.ahead, swept.duplicates), (0, 0), "{rule}");
    }
}
