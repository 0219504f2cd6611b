//! The operations of every algorithm on [`Limit`] and [`State`], whichever algorithm they belong
//! to.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::contract::{Algorithm, Judged, figures, judge};
use super::list::Stored;
use super::{Limit, State, each};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Figures};
use crate::error::RuleError;
use crate::grammar::{self, RuleWords, Word};
use crate::held::Held;
use crate::policy::{Mode, Policy, Replenishment, Waits};

impl Limit {
    /// Judges a request and stores it as `mode` requires. This pure function is the core of the
    /// rate limiter.
    ///
    /// ```
    /// use earrrl::{Cost, Limit, Mode, Nanos, Rule};
    /// let rule: Rule = "fixed-window 1/1m".parse()?;
    /// let (state, first) = rule.limit().decide(None, Nanos::ZERO, Cost::ONE, Mode::Check);
    /// let (_, second) = rule.limit().decide(state, Nanos::ZERO, Cost::ONE, Mode::Check);
    /// assert!(first.allowed && !second.allowed);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn decide(
        &self,
        state: Option<State>,
        now: Nanos,
        cost: Cost,
        mode: Mode,
    ) -> (Option<State>, Decision) {
        let (state, allowed, figures) = self.step(state, now, cost, mode);
        (state, Decision::single(allowed, now, figures))
    }

    /// Judges and stores a request as [`Limit::decide`] does. Returns the new state, true if the
    /// request is allowed, and the figures even of a denied request.
    pub fn step(
        &self,
        state: Option<State>,
        now: Nanos,
        cost: Cost,
        mode: Mode,
    ) -> (Option<State>, bool, Figures) {
        each!(self, limit => step(limit, state, now, cost, mode))
    }

    /// Judges and stores a request as [`Limit::decide`] does, but updates the state in place and
    /// returns only if the request is allowed. This is several times as fast.
    ///
    /// ```
    /// # use earrrl::{Cost, Mode, Nanos, Rule};
    /// # let rule: Rule = "fixed-window 1/1m".parse()?;
    /// let mut state = None;
    /// assert!(rule.limit().admit(&mut state, Nanos::ZERO, Cost::ONE, Mode::Check));
    /// assert!(!rule.limit().admit(&mut state, Nanos::ZERO, Cost::ONE, Mode::Check));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn admit(&self, state: &mut Option<State>, now: Nanos, cost: Cost, mode: Mode) -> bool {
        each!(self, limit => {
            let before = limit.advance(limit.open(state.take()), now);
            let Judged { after, allowed, .. } = judge(limit, before, now, cost, mode);
            *state = limit.wrap(after);
            allowed
        })
    }

    /// Removes a request that was stored at `charged_at` from the state; the result is never below
    /// empty.
    ///
    /// The result is exact except for exponential, which can only approximate it, and for a sliding
    /// log that has already dropped older entries because of this request.
    ///
    /// ```
    /// # use earrrl::{Cost, Mode, Nanos, Rule};
    /// let rule: Rule = "fixed-window 1/1m".parse()?;
    /// let (limit, now) = (rule.limit(), Nanos::from_secs(5));
    /// let (state, _) = limit.decide(None, now, Cost::ONE, Mode::Check);
    /// let state = limit.refund(state, now, now, Cost::ONE);
    /// assert!(limit.decide(state, now, Cost::ONE, Mode::Check).1.allowed);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn refund(
        &self,
        state: Option<State>,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<State> {
        each!(self, limit => limit.wrap(limit.refund(limit.open(state)?, now, charged_at, cost)))
    }

    /// Corrects a client's state for a reservation: the estimate that was charged becomes the
    /// `actual` cost. The state may have changed since the reservation.
    ///
    /// ```
    /// use earrrl::{Cost, Limit, Mode, Nanos, Rule};
    /// use earrrl::internal::Held;
    /// let rule: Rule = "fixed-window 100/1m".parse()?;
    /// let (limit, at) = (rule.limit(), Nanos::from_secs(1));
    /// let (state, decision) = limit.decide(None, at, Cost::from_units(60), Mode::Check);
    /// let held = Held::new(at, Cost::from_units(60), decision.reset_after);
    ///
    /// let now = Nanos::from_secs(5);
    /// let state = limit.commit(state, now, &held, Cost::from_units(25));
    /// let (_, after) = limit.decide(state, now, Cost::ZERO, Mode::Peek);
    /// assert_eq!(after.remaining, 75);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    ///
    /// | algorithm | precision |
    /// |---|---|
    /// | recent-average | 1e-9 of the greater of the count before and after |
    /// | windows | exact; a window that has ended stays as it was |
    /// | sliding-log | exact, while the log still has the entry |
    /// | token-bucket, gcra | exact if nothing else was charged, and until the bucket could be full again; otherwise too little is given back, by at most the refill since then, or what other reservations could have given back |
    /// | exponential | within the difference of the costs |
    /// | concurrent | exact: a commit of any cost gives the places back |
    pub fn commit(
        &self,
        state: Option<State>,
        now: Nanos,
        held: &Held,
        actual: Cost,
    ) -> Option<State> {
        each!(self, limit => limit.wrap(limit.commit(limit.open(state), now, held, actual)))
    }

    /// Returns true for concurrent, which counts the live reservations of a client. Its rules are
    /// reserved, and neither checked nor charged.
    #[inline]
    pub fn is_concurrent(&self) -> bool {
        matches!(self, Self::Concurrent(_))
    }

    /// Returns the longest time for which a reservation under this limit is live unless it is
    /// renewed; `None` if only the reservation's own terms limit it.
    pub fn hold_timeout(&self) -> Option<Duration> {
        match self {
            Self::Concurrent(limit) => Some(limit.timeout()),
            _ => None,
        }
    }

    /// Moves the places of a live reservation under concurrent to `now`. Returns the new state, and
    /// false if the state lacks the places. Other limits keep their states.
    pub fn renew(&self, state: Option<State>, now: Nanos, held: &Held) -> (Option<State>, bool) {
        let Self::Concurrent(limit) = self else {
            return (state, true);
        };
        let (tally, is_renewed) = limit.renew(limit.open(state), now, held);
        (limit.wrap(tally), is_renewed)
    }

    /// Returns the time in which a bucket refills a cost, rounded up; zero for other algorithms.
    #[doc(hidden)]
    pub fn time_to_refill(&self, cost: Cost) -> Duration {
        match self {
            Self::TokenBucket(limit) => limit.time_to_refill(cost),
            _ => Duration::ZERO,
        }
    }

    /// Returns the policy, which decides if denied requests are stored.
    ///
    /// ```
    /// # use earrrl::{Policy, Rule};
    /// let rule: Rule = "recent-average 1/s half-life=10s".parse()?;
    /// assert_eq!(rule.limit().policy(), Policy::Strict);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    #[inline]
    pub fn policy(&self) -> Policy {
        each!(self, limit => limit.policy())
    }

    /// Returns the waits that denied requests are told.
    pub fn waits(&self) -> Waits {
        each!(self, limit => limit.waits())
    }

    /// Returns the allowed rate, in cost units per second.
    ///
    /// ```
    /// # use earrrl::Rule;
    /// let rule: Rule = "fixed-window 60/1m".parse()?;
    /// assert_eq!(rule.limit().per_second(), 1.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn per_second(&self) -> f64 {
        each!(self, limit => limit.limit())
    }

    /// Returns the number of requests of cost 1 that the limit lets through at once from a client
    /// that it has not seen.
    ///
    /// ```
    /// # use earrrl::Rule;
    /// let rule: Rule = "recent-average 0.2/s half-life=5m".parse()?;
    /// assert_eq!(rule.limit().at_once(), 87);   // 0.2/s times 300 s / ln 2, rounded up
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_once(&self) -> u64 {
        self.decide(None, Nanos::ZERO, Cost::ONE, Mode::Peek)
            .1
            .remaining
    }

    /// Returns the quota in cost units, and the seconds in which that many units are allowed.
    pub(crate) fn allowance(&self) -> (f64, f64) {
        each!(self, limit => limit.allowance())
    }

    /// Returns how used quota comes back.
    ///
    /// ```
    /// # use earrrl::Rule;
    /// # use earrrl::algorithm::Replenishment;
    /// let rule: Rule = "fixed-window 60/1m".parse()?;
    /// assert_eq!(rule.limit().replenishment(), Replenishment::AtWindowEnd);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn replenishment(&self) -> Replenishment {
        each!(self, limit => limit.replenishment())
    }

    /// Returns the time of the client's last stored request if a refund must name this time to find
    /// the request; `None` if a refund finds it under the present time too.
    pub fn last_charge(&self, state: Option<&State>) -> Option<Nanos> {
        match state? {
            State::SlidingLog(log) => log.newest().map(Nanos::new),
            _ => None,
        }
    }

    /// Returns true if a request can be held back until it is allowed; see [`Algorithm::can_delay`].
    ///
    /// ```
    /// # use earrrl::Rule;
    /// assert!("gcra 1/s burst=60".parse::<Rule>()?.limit().can_delay());
    /// assert!(!"fixed-window 60/1m".parse::<Rule>()?.limit().can_delay());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn can_delay(&self) -> bool {
        each!(self, limit => limit.can_delay())
    }

    /// Returns true if the bounded table holds the clients of this limit: under recent-average,
    /// token-bucket and gcra, under fixed-window up to 8,388,608 (2^23) units per second of the
    /// window (10^12 in a calendar's period, 2^39 with `start=first`), and under sliding-counter up to 7 digits (a window of 1 s) to 9 digits (1 h) of units.
    /// Counts with more digits, their decimals included, are rounded up.
    ///
    /// ```
    /// # use earrrl::Rule;
    /// assert!("gcra 1/s burst=60".parse::<Rule>()?.limit().fits_words());
    /// assert!("fixed-window 8388607/1s".parse::<Rule>()?.limit().fits_words());
    /// assert!(!"fixed-window 8388608/1s".parse::<Rule>()?.limit().fits_words());
    /// assert!("sliding-counter 16777214/1s".parse::<Rule>()?.limit().fits_words());
    /// assert!(!"sliding-log 60/1m".parse::<Rule>()?.limit().fits_words());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn fits_words(&self) -> bool {
        each!(self, limit => limit.fits_words())
    }

    /// Returns the largest quota with which the table holds the clients of a limit that is otherwise
    /// like this one; `None` for algorithms whose states are no words.
    pub fn largest_in_words(&self) -> Option<u64> {
        each!(self, limit => limit.largest_in_words())
    }

    /// Returns the most bytes that a busy client's state occupies, including the heap.
    pub fn state_bytes(&self) -> usize {
        size_of::<State>() + each!(self, limit => limit.most_heap_bytes())
    }

    /// Returns the rule's text with every option spelled out.
    pub(crate) fn text(&self) -> String {
        each!(self, limit => limit.write())
    }
}

/// # States in stores
#[cfg(feature = "std")]
impl Limit {
    /// Returns the client's usage relative to the limit: 1 at the limit, more above it. Drops the
    /// parts of the state that no longer count.
    pub(crate) fn usage(&self, state: &mut Option<State>, now: Nanos) -> f64 {
        each!(self, limit => {
            let before = limit.advance(limit.open(state.take()), now);
            let rate = limit.estimate(before.as_ref(), now, Cost::ZERO);
            let rate = rate.or_else(|| limit.counted(before.as_ref(), now));
            let reset_after = match rate {
                Some(_) => Duration::ZERO,
                None => limit.reset_after(before.as_ref(), now),
            };
            *state = limit.wrap(before);
            self.usage_of(rate, reset_after)
        })
    }

    /// Returns the usage that figures report: the rate relative to the limit, or the share of a
    /// bucket that is used if no rate is measured.
    pub(crate) fn usage_of(&self, rate: Option<f64>, reset_after: Duration) -> f64 {
        match rate {
            Some(rate) => rate / self.per_second(),
            None => reset_after.as_secs_f64() / self.allowance().1,
        }
    }

    /// Returns a client's state under the limit `old` as a state under this limit; `None` if states of the
    /// two limits differ in meaning.
    #[doc(hidden)]
    pub fn carried(&self, old: &Self, state: State, now: Nanos) -> Option<State> {
        if self.meaning() != old.meaning() {
            return None;
        }
        Some(match (self, old, state) {
            (Self::TokenBucket(new), Self::TokenBucket(old), State::TokenBucket(full_at)) => {
                State::TokenBucket(new.carried(old, full_at, now))
            }
            (_, _, state) => state,
        })
    }

    /// Returns true if a bucket fills in less time than under the limit `old`, so that stored waits are too long.
    pub(crate) fn shortens_waits_of(&self, old: &Self) -> bool {
        match (self, old) {
            (Self::TokenBucket(new), Self::TokenBucket(old)) => new.full_ticks() < old.full_ticks(),
            _ => false,
        }
    }

    /// Returns true for token-bucket and gcra, which lose refill while a client's whole quota is
    /// available.
    pub(crate) fn is_bucket(&self) -> bool {
        matches!(self, Self::TokenBucket(_))
    }

    /// Returns how far the instant of a stored request may lag behind the present time; see
    /// [`Algorithm::lag`].
    pub fn lag(&self) -> Duration {
        each!(self, limit => limit.lag())
    }

    /// Returns the state that a word encodes; see [`Algorithm::state_of`].
    pub(crate) fn state_of(&self, word: super::Word) -> Option<State> {
        each!(self, limit => limit.wrap(limit.state_of(word)))
    }

    /// Returns the state as a word; see [`Algorithm::word`].
    pub(crate) fn word(&self, state: State) -> Option<super::Word> {
        each!(self, limit => limit.open(Some(state)).map(|state| limit.word(&state)))
    }

    /// Returns the greatest rank of a client whose past requests no longer affect decisions at
    /// `now`.
    pub(crate) fn idle(&self, now: Nanos) -> super::Word {
        each!(self, limit => limit.idle(now))
    }

    /// Returns the rank of a client's word at `now`; see [`Algorithm::rank`].
    pub(crate) fn rank(&self, word: super::Word, now: Nanos) -> super::Word {
        each!(self, limit => limit.rank(word, now))
    }

    /// Returns the greatest word that requests up to `now` can leave.
    pub(crate) fn greatest(&self, now: Nanos) -> super::Word {
        each!(self, limit => limit.greatest(now))
    }
}

fn step<A: Stored<State>>(
    limit: &A,
    state: Option<State>,
    now: Nanos,
    cost: Cost,
    mode: Mode,
) -> (Option<State>, bool, Figures) {
    let before = limit.advance(limit.open(state), now);
    let estimate = limit.estimate(before.as_ref(), now, cost);
    let Judged {
        after,
        allowed,
        stores,
    } = judge(limit, before, now, cost, mode);
    let is_told = stores && !allowed && mode == Mode::Check;
    let figures = figures(limit, estimate, after.as_ref(), is_told, now, cost);
    (limit.wrap(after), allowed, figures)
}

/// Parses a rule's text, which is one limit. Anything after the limit is an error.
pub(crate) fn parse(text: &str) -> Result<Limit, RuleError> {
    if text.len() > grammar::LONGEST {
        let problem = format!(
            "the rule is {} bytes long; at most {}",
            text.len(),
            grammar::LONGEST
        );
        return Err(RuleError::syntax(problem));
    }
    if let Some((before, after)) = text.split_once([',', ';']) {
        let column = before.chars().count() + 1;
        let got = &text[before.len()..text.len() - after.len()];
        let digit = |found: Option<char>| found.is_some_and(|found| found.is_ascii_digit());
        let meant = match digit(before.chars().next_back()) && digit(after.chars().next()) {
            true => "; a number has no commas, as in `1000`",
            false => "",
        };
        let problem = format!("expected a blank between words, got `{got}`{meant}");
        return Err(RuleError::syntax(problem).at(column));
    }
    if let Some((before, _)) = text.split_once(['“', '”', '‘', '’']) {
        let problem =
            String::from("expected a rule without typographic quotes; write \" or ' around it");
        return Err(RuleError::syntax(problem).at(before.chars().count() + 1));
    }
    let mut words = RuleWords::new(text);
    let name = words.next(&format!("expected {}", names()))?;
    let limit = Limit::read(name.text, &mut words).unwrap_or_else(|| Err(unknown(&name)))?;
    words.finish()?;
    Ok(limit)
}

/// Returns the names of all algorithms for an error message: `recent-average, …, sliding-window or
/// sliding-counter`.
fn names() -> String {
    let names: Vec<&str> = Limit::NAMES.iter().copied().flatten().copied().collect();
    match names.split_last() {
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Names that other programs use for an algorithm, each with the name that rules use.
const SYNONYMS: [(&str, &str); 10] = [
    ("leaky-bucket", "gcra"),
    ("leaky", "gcra"),
    ("bucket", "token-bucket"),
    ("tokens", "token-bucket"),
    ("window", "fixed-window"),
    ("rolling-window", "sliding-window"),
    ("moving-window", "sliding-log"),
    ("ewma", "recent-average"),
    ("concurrency", "concurrent"),
    ("semaphore", "concurrent"),
];

fn unknown(name: &Word<'_>) -> RuleError {
    if name
        .text
        .starts_with(|first: char| first.is_ascii_digit() || first == '/')
    {
        let number = if name.text.starts_with('/') { "5" } else { "" };
        let rule = format!("fixed-window {number}{}", name.text);
        let valid = parse(&rule).is_ok();
        let rule = if valid { &rule } else { "fixed-window 5/1m" };
        let problem = "expected an algorithm before";
        return name.error(format!("{problem} {}, as in `{rule}`", name.quoted()));
    }
    let synonym = SYNONYMS
        .iter()
        .find(|(other, _)| name.text.eq_ignore_ascii_case(other));
    let known = Limit::NAMES.iter().copied().flatten().copied();
    let meant = match synonym {
        Some((_, meant)) => format!("; did you mean `{meant}`?"),
        None => grammar::did_you_mean(name.text, known),
    };
    name.error(format!(
        "unknown algorithm {}; expected {}{meant}",
        name.quoted(),
        names()
    ))
}
