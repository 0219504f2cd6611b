use super::*;
use crate::algorithm::Mode;
use crate::cost::Cost;

const NOW: Nanos = Nanos::from_secs(1_800_000_000);
/// A rule for the table of words, and a rule for the map of larger states.
const RULES: [&str; 2] = ["token-bucket 9 refill=1/h", "fixed-window 9/1h"];

fn key() -> KeyHash {
    KeyHash::from_bits(7 << 40 | 77)
}

/// Returns `COUNT` empty stores of one rule.
fn stores<const COUNT: usize>(text: &str) -> (Rule, [Arc<Clients>; COUNT]) {
    let rule: Rule = text.parse().unwrap();
    let clients = [(); COUNT].map(|()| Arc::new(Clients::new(rule.limit(), 10, None).unwrap()));
    (rule, clients)
}

/// Sends one request. Returns the remaining quota, or `None` if the client may be in another store.
fn request(clients: &Clients, rule: &Rule) -> Option<u64> {
    let limit = rule.limit();
    clients.update(key(), limit, NOW, |state| {
        let (state, decision) = limit.decide(state, NOW, Cost::ONE, Mode::Check);
        (state, decision.remaining)
    })
}

fn seal(clients: &Clients, rule: &Rule, next: &Arc<Clients>) {
    clients.seal(Next {
        rule: rule.clone(),
        clients: Arc::clone(next),
    });
}

/// A sweep knows only the fingerprint of a word's key, so all keys with the same fingerprint must
/// have the same lock.
#[test]
fn a_client_has_one_lock() {
    static LOCKS: Locks = Locks([const { Mutex::new(()) }; 4096]);
    let lock_of = |bits: u64| {
        let _held = LOCKS.lock(KeyHash::from_bits(bits));
        LOCKS.0.iter().position(|lock| lock.try_lock().is_err())
    };
    let fingerprint = 0x12_3456_7891;
    assert_eq!(lock_of(fingerprint), lock_of(fingerprint | 0xAB << 40));
    assert_ne!(lock_of(fingerprint), lock_of(fingerprint + 2));
}

#[test]
fn a_late_request_takes_its_client_along() {
    for text in RULES {
        let (rule, [older, newer]) = stores(text);
        assert_eq!(request(&older, &rule), Some(8));
        seal(&older, &rule, &newer);
        let next = older.next(key(), &rule, NOW).unwrap();
        assert_eq!(
            (request(&next.clients, &rule), older.len()),
            (Some(7), 0),
            "{text}"
        );
        assert_eq!(request(&older, &rule), None, "{text}");
    }
}

/// The rule is changed again while a thread moves the client.
#[test]
fn a_client_goes_on_to_the_last_of_several_stores() {
    for text in RULES {
        let (rule, [first, second, third]) = stores(text);
        assert_eq!(request(&first, &rule), Some(8));
        seal(&first, &rule, &second);
        seal(&second, &rule, &third);
        let older = Older {
            limit: *rule.limit(),
            clients: first,
            older: None,
        };
        older.settle(key(), &rule, &second, NOW);
        assert_eq!(
            (request(&third, &rule), older.len(), second.len()),
            (Some(7), 0, 0),
            "{text}"
        );
    }
}

/// Two clients have the same hash. Moving one of them does not undo what the other was charged.
#[test]
fn a_state_that_is_there_stays() {
    for text in RULES {
        let (rule, [older, newer]) = stores(text);
        assert_eq!(request(&older, &rule), Some(8));
        let state = older.take(key(), rule.limit()).unwrap();
        assert_eq!(
            [request(&newer, &rule), request(&newer, &rule)],
            [Some(8), Some(7)]
        );
        newer.receive(key(), &rule, state, rule.limit(), NOW);
        assert_eq!(request(&newer, &rule), Some(6), "{text}");
    }
}
