//! This library, with the settings that anybody gets.

use std::time::Duration;

use earrrl::{BuildError, Clock, Limiter, Rule, SystemClock};

use crate::contender::{Contender, Key};
use crate::ticking::TickingClock;
use crate::{Load, Setting};

pub struct Ours<K, C> {
    limiter: Limiter<K, C>,
    room: usize,
}

fn rule(algorithm: &str, load: Load) -> Rule {
    let text = match (algorithm, load) {
        ("gcra", Load::Allowed) => "gcra 1000000000/s burst=1000000000",
        ("gcra", Load::Denied) => "gcra 1/d burst=1",
        (_, Load::Allowed) => "recent-average 1000000000/s half-life=10s strict",
        (_, Load::Denied) => "recent-average 0.000001/s half-life=1h strict",
    };
    text.parse().expect("a valid rule")
}

impl<K: Key, C> Ours<K, C> {
    pub fn of(built: Result<Limiter<K, C>, BuildError>, room: usize) -> Self {
        let limiter = built.expect("enough memory");
        Self { limiter, room }
    }
}

pub fn system<K: Key>(algorithm: &str, setting: &Setting) -> Ours<K, SystemClock> {
    let limiter = Limiter::builder(rule(algorithm, setting.load)).capacity(setting.capacity());
    Ours::of(limiter.build(), setting.capacity())
}

pub fn ticking<K: Key>(algorithm: &str, setting: &Setting) -> Ours<K, TickingClock> {
    let clock = TickingClock::new(Duration::from_millis(1)).expect("a thread");
    let limiter = Limiter::builder(rule(algorithm, setting.load)).capacity(setting.capacity());
    Ours::of(limiter.clock(clock).build(), setting.capacity())
}

impl<K: Key, C: Clock> Contender<K> for Ours<K, C> {
    fn decide(&self, key: &K) -> bool {
        self.limiter.check(key).is_allowed()
    }

    fn decide_batch(&self, keys: &[K]) -> usize {
        self.limiter
            .admit_batch(keys)
            .filter(|allowed| *allowed)
            .count()
    }

    fn room(&self) -> Option<usize> {
        Some(self.room)
    }
}
