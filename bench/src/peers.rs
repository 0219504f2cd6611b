//! Other limiters, each with the clock it comes with.

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use governor::clock::{Clock, DefaultClock, QuantaUpkeepClock};
use governor::middleware::NoOpMiddleware;
use governor::state::InMemoryState;
use governor::{Quota, RateLimiter};

use crate::contender::{Contender, Key};
use crate::{Load, Setting};

type Governor<K, S, C> =
    RateLimiter<K, DashMap<K, InMemoryState, S>, C, NoOpMiddleware<<C as Clock>::Instant>>;

pub fn quota(load: Load) -> Quota {
    match load {
        Load::Allowed => Quota::per_second(NonZeroU32::new(1_000_000_000).expect("above 0")),
        Load::Denied => Quota::with_period(Duration::from_secs(86_400)).expect("above 0"),
    }
}

pub struct Keyed<K: Key, S: BuildHasher + Clone, C: Clock>(Governor<K, S, C>);

/// As it comes: `RateLimiter::keyed`.
pub fn governor<K: Key>(setting: &Setting) -> Keyed<K, std::hash::RandomState, DefaultClock> {
    Keyed(RateLimiter::dashmap_with_clock(
        quota(setting.load),
        DefaultClock::default(),
    ))
}

impl<K: Key> Keyed<K, foldhash::fast::RandomState, DefaultClock> {
    /// With a hash whose keys can be chosen against.
    pub fn foldhash(quota: Quota) -> Self {
        let hasher = foldhash::fast::RandomState::default();
        Self(RateLimiter::dashmap_with_clock_and_hasher(
            quota,
            DefaultClock::default(),
            hasher,
        ))
    }
}

impl<K: Key> Keyed<K, foldhash::fast::RandomState, QuantaUpkeepClock> {
    /// With that hash and the clock of a ticking thread.
    pub fn tuned(quota: Quota) -> Self {
        let clock = QuantaUpkeepClock::from_interval(Duration::from_millis(1)).expect("one upkeep");
        let hasher = foldhash::fast::RandomState::default();
        Self(RateLimiter::dashmap_with_clock_and_hasher(
            quota, clock, hasher,
        ))
    }
}

impl<K: Key, S: BuildHasher + Clone + Send + Sync, C: Clock + Sync> Contender<K> for Keyed<K, S, C>
where
    C::Instant: Sync,
{
    fn decide(&self, key: &K) -> bool {
        self.0.check_key(key).is_ok()
    }

    fn tidy(&self) {
        self.0.retain_recent();
    }
}

/// One `ratelimit::Ratelimiter` a client.
pub struct RateLimiters<K: Key> {
    clients: DashMap<K, ratelimit::Ratelimiter>,
    load: Load,
}

pub fn ratelimiters<K: Key>(setting: &Setting) -> RateLimiters<K> {
    RateLimiters {
        clients: DashMap::new(),
        load: setting.load,
    }
}

impl<K: Key> RateLimiters<K> {
    fn new_client(&self) -> ratelimit::Ratelimiter {
        let (rate, period) = match self.load {
            Load::Allowed => (1_000_000_000, Duration::from_secs(1)),
            Load::Denied => (1, Duration::from_secs(86_400)),
        };
        let builder = ratelimit::Ratelimiter::builder(rate)
            .period(period)
            .max_tokens(rate);
        builder
            .initial_available(rate)
            .build()
            .expect("a valid rate")
    }
}

impl<K: Key> Contender<K> for RateLimiters<K> {
    fn decide(&self, key: &K) -> bool {
        if let Some(client) = self.clients.get(key) {
            return client.try_wait().is_ok();
        }
        let client = self
            .clients
            .entry(key.clone())
            .or_insert_with(|| self.new_client());
        client.try_wait().is_ok()
    }
}

/// throttlecrab's library takes `&mut self`, so it comes with a lock.
pub struct Throttlecrab {
    limiter: Mutex<throttlecrab::RateLimiter<throttlecrab::AdaptiveStore>>,
    load: Load,
}

pub fn throttlecrab(setting: &Setting) -> Throttlecrab {
    let store = throttlecrab::AdaptiveStore::with_capacity(setting.clients);
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(store));
    Throttlecrab {
        limiter,
        load: setting.load,
    }
}

impl Contender<String> for Throttlecrab {
    fn decide(&self, key: &String) -> bool {
        let (burst, count, period) = match self.load {
            Load::Allowed => (1_000_000, 1_000_000_000, 1),
            Load::Denied => (1, 1, 86_400),
        };
        let mut limiter = self.limiter.lock().expect("no panic");
        limiter
            .rate_limit(key, burst, count, period, 1, SystemTime::now())
            .is_ok_and(|(allowed, _)| allowed)
    }
}

/// A sketch that only observes; it has no notion of a client.
pub struct Pingora {
    rate: pingora_limits::rate::Rate,
    most: isize,
}

pub fn pingora(setting: &Setting) -> Pingora {
    let most = if setting.load == Load::Allowed {
        isize::MAX
    } else {
        0
    };
    Pingora {
        rate: pingora_limits::rate::Rate::new(Duration::from_secs(1)),
        most,
    }
}

impl<K: Key> Contender<K> for Pingora {
    fn decide(&self, key: &K) -> bool {
        self.rate.observe(key, 1) <= self.most
    }
}
