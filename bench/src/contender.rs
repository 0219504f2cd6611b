//! What is measured: something that decides a request of a key.

use std::hash::Hash;
use std::hint::black_box;
use std::time::Instant;

/// Clients' keys: `u64`, or strings of 20 bytes.
pub trait Key: Hash + Eq + Clone + Send + Sync + 'static {
    fn of(client: u64) -> Self;
}

impl Key for u64 {
    fn of(client: u64) -> Self {
        client
    }
}

impl Key for String {
    fn of(client: u64) -> Self {
        format!("client-{client:013}")
    }
}

/// A rate limiter, its clock inside.
pub trait Contender<K>: Sync {
    fn decide(&self, key: &K) -> bool;

    /// Many keys at once, where there is a way.
    fn decide_batch(&self, keys: &[K]) -> usize {
        keys.iter().filter(|key| self.decide(key)).count()
    }

    /// Forgets idle clients, where the memory has no bound.
    fn tidy(&self) {}

    /// How many clients its memory is for, where that is fixed.
    fn room(&self) -> Option<usize> {
        None
    }
}

/// How the requests of a round are asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One after the other, as fast as they go.
    Single,
    /// In batches of 16.
    Batches,
    /// Each once the one before is over.
    Chained,
}

/// A contender that can be asked for a round.
pub trait Runner<K>: Sync {
    /// The nanoseconds a decision takes in each of as many threads as there are sequences.
    fn round(&self, sequences: &[&[K]], mode: Mode) -> f64;
    fn visit(&self, key: &K);
    fn tidy(&self);
    fn room(&self) -> Option<usize>;
}

impl<K: Key, C: Contender<K>> Runner<K> for C {
    fn round(&self, sequences: &[&[K]], mode: Mode) -> f64 {
        let length = sequences.iter().map(|keys| keys.len()).max().unwrap_or(1);
        let start = Instant::now();
        match sequences {
            [keys] => one_round(self, keys, mode),
            _ => std::thread::scope(|scope| {
                for keys in sequences {
                    scope.spawn(move || one_round(self, keys, mode));
                }
            }),
        }
        start.elapsed().as_nanos() as f64 / length as f64
    }

    fn visit(&self, key: &K) {
        black_box(self.decide(key));
    }

    fn tidy(&self) {
        Contender::tidy(self);
    }

    fn room(&self) -> Option<usize> {
        Contender::room(self)
    }
}

fn one_round<K: Key, C: Contender<K>>(contender: &C, keys: &[K], mode: Mode) {
    let allowed = match mode {
        Mode::Single => keys.iter().filter(|key| contender.decide(key)).count(),
        Mode::Batches => keys
            .chunks(16)
            .map(|keys| contender.decide_batch(keys))
            .sum(),
        Mode::Chained => {
            let decided = |key: &&K| {
                let allowed = contender.decide(key);
                wait_for_all_before();
                allowed
            };
            keys.iter().filter(decided).count()
        }
    };
    black_box(allowed);
}

/// Nothing after this begins before everything before it is over.
fn wait_for_all_before() {
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
}
