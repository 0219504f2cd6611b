//! Asking: the rules that a request is charged under decide, and what each said is counted.

use earrrl::table::KeyHash;
use earrrl::{Brief, Charge, Cost, Decision, EngineError, MAX_CHARGES, Mode, Nanos, Outcome};
use earrrl_tower::headers::{Available, peek_cost};
use smallvec::SmallVec;

use super::Service;
use super::attributes::Attributes;
use super::error::AskError;
use super::key::{Key, check_key};
use super::rules::{ActiveRule, ActiveRules, PreparedLimit};

/// A request's share of one rule.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The rule.
    pub rule: &'a ActiveRule,
    /// The client.
    pub key: &'a [u8],
    /// What it costs; `None` for what the rule says.
    pub cost: Option<Cost>,
}

impl<'a> Ask<'a> {
    /// What it is charged under which limit; `None` where the rule leaves the client alone.
    #[inline]
    fn charge(&self) -> Option<(&'a PreparedLimit, Charge<'a>)> {
        let limit = self.rule.limit_for_key(self.key)?;
        let cost = self.cost.unwrap_or_else(|| self.rule.plain_cost());
        Some((limit, Charge { rule: limit.id, key: self.key, cost }))
    }
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Whether the answer is also stored.
    pub mode: Mode,
    /// Whether it says what `RateLimit` headers tell: under several rules that takes more peeks.
    pub available: bool,
}

impl From<Mode> for Manner {
    fn from(mode: Mode) -> Self {
        Self { mode, available: false }
    }
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    /// `None` when no rule applies: the request is allowed, and there is nothing to tell.
    pub decision: Option<Decision>,
    /// The rules that were charged, in order.
    pub charged: SmallVec<[(&'a ActiveRule, &'a PreparedLimit); 2]>,
    /// What the client may send under each of them, where that was asked for.
    pub available: SmallVec<[Available; 2]>,
}

impl<'a> Answer<'a> {
    /// The rule the figures come from.
    pub fn rule(&self) -> Option<(&'a ActiveRule, &'a PreparedLimit)> {
        self.charged.get(self.decision.as_ref()?.rule).copied()
    }
}

impl Service {
    /// Begins to fetch the state of a client that is about to ask.
    #[inline]
    pub fn prefetch(&self, rule: &ActiveRule, key: &[u8]) -> Option<KeyHash> {
        self.engine.prefetch(rule.limit_for_key(key)?.id, key)
    }

    /// Asks one rule.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    #[inline]
    pub async fn ask<'a>(
        &self,
        ask: Ask<'a>,
        manner: impl Into<Manner>,
    ) -> Result<Answer<'a>, AskError> {
        self.ask_hashed(ask, None, manner).await
    }

    /// The same where [`prefetch`](Self::prefetch) has hashed the key.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    #[inline]
    pub async fn ask_hashed<'a>(
        &self,
        ask: Ask<'a>,
        hash: Option<KeyHash>,
        manner: impl Into<Manner>,
    ) -> Result<Answer<'a>, AskError> {
        check_key(ask.key)?;
        let Some((limit, charge)) = ask.charge() else {
            return Ok(self.exempt(ask.rule));
        };
        let charged = SmallVec::from_slice(&[(ask.rule, limit)]);
        self.charge(charged, &[charge], hash, manner.into()).await
    }

    /// Checks one rule, told in brief: of a client that the rule leaves alone, nothing.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    #[inline]
    pub async fn check(
        &self,
        ask: Ask<'_>,
        hash: Option<KeyHash>,
    ) -> Result<Option<Brief>, AskError> {
        check_key(ask.key)?;
        let Some((limit, charge)) = ask.charge() else {
            self.exempt(ask.rule);
            return Ok(None);
        };
        if let Some(brief) = self.engine.check_at_once(&charge, hash) {
            let brief = brief?;
            ask.rule.count(brief.outcome, ask.key);
            return Ok(Some(brief));
        }
        // Boxed, so that it takes no room where nothing is waited for.
        let (charged, charges) = ([(ask.rule, limit)], [charge]);
        let decided = Box::pin(self.decide(&charged, &charges, hash, Mode::Check)).await?;
        Ok(Some(Brief::from(&decided)))
    }

    /// Decides, and counts what each rule said.
    #[inline]
    async fn decide(
        &self,
        charged: &[(&ActiveRule, &PreparedLimit)],
        charges: &[Charge<'_>],
        hash: Option<KeyHash>,
        mode: Mode,
    ) -> Result<Decision, EngineError> {
        let decision = match (charges, hash) {
            ([charge], Some(hash)) => self.engine.decide_hashed(charge, hash, mode).await?,
            _ => self.engine.decide(charges, mode).await?,
        };
        if mode != Mode::Peek {
            for (place, (rule, limit)) in charged.iter().enumerate() {
                rule.count(outcome(&decision, place, limit), charges[place].key);
            }
        }
        Ok(decision)
    }

    /// Asks several rules: all or nothing.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    pub async fn ask_all<'a>(
        &self,
        asks: &[Ask<'a>],
        manner: impl Into<Manner>,
    ) -> Result<Answer<'a>, AskError> {
        if asks.len() > MAX_CHARGES {
            return Err(EngineError::Charges(asks.len()).into());
        }
        let mut charged = SmallVec::with_capacity(asks.len());
        let mut charges: SmallVec<[Charge<'a>; 4]> = SmallVec::with_capacity(asks.len());
        for ask in asks {
            check_key(ask.key)?;
            if let Some((limit, charge)) = ask.charge() {
                charged.push((ask.rule, limit));
                charges.push(charge);
            }
        }
        self.charge(charged, &charges, None, manner.into()).await
    }

    /// Asks every rule that matches a request.
    ///
    /// # Errors
    /// [`AskError`]; nothing is stored then.
    pub async fn ask_matching<'a>(
        &self,
        rules: &'a ActiveRules,
        request: &Attributes<'_>,
        manner: Manner,
    ) -> Result<Answer<'a>, AskError> {
        let mut charged = SmallVec::new();
        let mut keyed: SmallVec<[(Key, Cost); 4]> = SmallVec::new();
        let mut unmatched = true;
        for rule in rules.iter().filter(|rule| rule.matches(request)) {
            unmatched = false;
            let Some(limit) = rule.limit_for(request) else { continue };
            let (key, cost) = (rule.key(request), rule.cost(request).map_err(AskError::Invalid)?);
            check_key(&key)?;
            charged.push((rule, limit));
            keyed.push((key, cost));
        }
        if unmatched && manner.mode != Mode::Peek {
            self.metrics.unmatched.increment();
        }
        let limits = charged.iter().map(|(_, limit): &(_, &PreparedLimit)| limit.id);
        let each = limits.zip(&keyed).map(|(rule, (key, cost))| Charge { rule, key, cost: *cost });
        let charges: SmallVec<[Charge<'_>; 4]> = each.collect();
        self.charge(charged, &charges, None, manner).await
    }

    /// Takes back a charge.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn refund(&self, ask: Ask<'_>, charged_at: Option<Nanos>) -> Result<(), AskError> {
        check_key(ask.key)?;
        let Some((_, charge)) = ask.charge() else { return Ok(()) };
        Ok(self.engine.refund(&charge, charged_at).await?)
    }

    /// Forgets a client under one rule.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn reset(&self, rule: &ActiveRule, key: &[u8]) -> Result<(), AskError> {
        check_key(key)?;
        let Some(limit) = rule.limit_for_key(key) else { return Ok(()) };
        Ok(self.engine.reset(limit.id, key).await?)
    }

    #[inline]
    async fn charge<'a>(
        &self,
        charged: SmallVec<[(&'a ActiveRule, &'a PreparedLimit); 2]>,
        charges: &[Charge<'_>],
        hash: Option<KeyHash>,
        Manner { mode, available }: Manner,
    ) -> Result<Answer<'a>, AskError> {
        if charges.is_empty() {
            return Ok(Answer { decision: None, charged, available: SmallVec::new() });
        }
        let decision = self.decide(&charged, charges, hash, mode).await?;
        let available = match available {
            true => match told(&decision, &charged) {
                Some(available) => available,
                // Boxed, so that it takes no room in connections where it is not asked for.
                None => Box::pin(self.available(&decision, &charged, charges)).await?,
            },
            false => SmallVec::new(),
        };
        Ok(Answer { decision: Some(decision), charged, available })
    }

    /// What the client may send under each rule: as the decision tells it, or a peek.
    async fn available(
        &self,
        decision: &Decision,
        charged: &[(&ActiveRule, &PreparedLimit)],
        charges: &[Charge<'_>],
    ) -> Result<SmallVec<[Available; 2]>, EngineError> {
        let mut all = SmallVec::new();
        for (place, ((_, limit), charge)) in charged.iter().zip(charges).enumerate() {
            let told = Available::from_decision(&limit.rule, decision, place);
            all.push(match told {
                Some(available) => available,
                None => {
                    let cost = peek_cost(decision, place, charge.cost);
                    let peek =
                        self.engine.decide(&[Charge { cost, ..*charge }], Mode::Peek).await?;
                    Available::from_peek(&limit.rule, &peek)
                }
            });
        }
        Ok(all)
    }

    fn exempt<'a>(&self, rule: &ActiveRule) -> Answer<'a> {
        rule.outcomes.count(Outcome::Allow);
        Answer { decision: None, charged: SmallVec::new(), available: SmallVec::new() }
    }
}

/// What the client may send under each rule, where the decision tells it of all.
fn told(
    decision: &Decision,
    charged: &[(&ActiveRule, &PreparedLimit)],
) -> Option<SmallVec<[Available; 2]>> {
    let rules = charged.iter().enumerate();
    rules
        .map(|(place, (_, limit))| Available::from_decision(&limit.rule, decision, place))
        .collect()
}

/// What one of the charged rules said by itself.
fn outcome(decision: &Decision, place: usize, limit: &PreparedLimit) -> Outcome {
    use earrrl::Action;
    if !decision.is_over(place) {
        return Outcome::Allow;
    }
    match limit.rule.action() {
        Action::Observe => Outcome::Observe,
        Action::Quarantine => Outcome::Quarantine,
        Action::ShadowBan => Outcome::ShadowBan,
        Action::Delay { .. } if decision.outcome == Outcome::Delay => Outcome::Delay,
        _ => Outcome::Deny,
    }
}
