//! A rule: a limit, the action on requests over the limit, and the text that it was parsed from.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use crate::algorithm::{Limit, Mode, parse};
use crate::cost::Cost;
use crate::decision::Action;
use crate::error::{RuleError, RuleErrorKind};
use crate::held::OnExpiry;

/// A limit and the action on requests over the limit. An invalid rule cannot be built.
///
/// ```
/// use earrrl::{Action, Rule};
/// let rule: Rule = "recent-average 1/s half-life=10s strict".parse()?;
/// assert_eq!(rule.to_string(), "recent-average 1/s half-life=10s strict");
/// assert_eq!(rule.action(), Action::Deny);
///
/// let error = "recent-average 1/s half-life=0s".parse::<Rule>().unwrap_err();
/// assert_eq!(error.to_string(), "column 30: half-life: 0ns is not from 1ms to ten years (3660d)");
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    limit: Limit,
    action: Action,
    max_cost: Cost,
    max_bytes: Option<usize>,
    on_expiry: OnExpiry,
    /// Shared by clones, since engines and servers keep several of each rule.
    text: Arc<str>,
}

impl Rule {
    /// Returns the limit.
    ///
    /// ```
    /// # use earrrl::{Limit, Rule};
    /// let rule: Rule = "gcra 1/s burst=60".parse()?;
    /// assert!(matches!(rule.limit(), Limit::TokenBucket(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the action on requests over the limit; [`Action::Deny`] by default.
    ///
    /// ```
    /// # use earrrl::{Action, Rule};
    /// assert_eq!("gcra 1/s burst=9".parse::<Rule>()?.action(), Action::Deny);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn action(&self) -> Action {
        self.action
    }

    /// Returns the greatest cost of one request; [`Cost::MAX`] by default.
    ///
    /// ```
    /// # use earrrl::{Cost, Rule};
    /// let rule: Rule = "gcra 1/s burst=9".parse()?;
    /// assert_eq!(rule.with_max_cost(Cost::from_units(5))?.max_cost(), Cost::from_units(5));
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn max_cost(&self) -> Cost {
        self.max_cost
    }

    /// Sets the action on requests over the limit.
    ///
    /// ```
    /// # use earrrl::{Action, Rule};
    /// # use std::time::Duration;
    /// let delay = Action::Delay { max: Duration::from_secs(5) };
    /// assert!("gcra 1/s burst=60".parse::<Rule>()?.with_action(delay).is_ok());
    /// assert!("fixed-window 1/1m".parse::<Rule>()?.with_action(delay).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the action is [`Action::Delay`] and the algorithm is not token-bucket,
    /// gcra or recent-average.
    pub fn with_action(self, action: Action) -> Result<Self, RuleError> {
        if matches!(action, Action::Delay { .. }) && !self.limit.can_delay() {
            let problem =
                format!("`{self}` can't delay: token-bucket, gcra and recent-average can");
            return Err(RuleError::new(problem).of("action"));
        }
        Ok(Self { action, ..self })
    }

    /// Sets the greatest cost of one request. This also bounds for how long one request can lock
    /// its client out.
    ///
    /// ```
    /// # use earrrl::{Cost, Rule};
    /// let rule = "gcra 1/s burst=60".parse::<Rule>()?.with_max_cost(Cost::from_units(10))?;
    /// assert!(rule.accept(Cost::from_units(11)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the bound is 0.
    pub fn with_max_cost(self, max_cost: Cost) -> Result<Self, RuleError> {
        if max_cost.is_zero() {
            return Err(RuleError::out_of_range("0 is not above 0".to_owned()).of("max_cost"));
        }
        Ok(Self { max_cost, ..self })
    }

    /// Returns the treatment of reservations that are not committed in time; [`OnExpiry::Keep`] by
    /// default, [`OnExpiry::Release`] under concurrent.
    ///
    /// ```
    /// # use earrrl::{OnExpiry, Rule};
    /// assert_eq!("gcra 1/s burst=9".parse::<Rule>()?.on_expiry(), OnExpiry::Keep);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn on_expiry(&self) -> OnExpiry {
        self.on_expiry
    }

    /// Sets the treatment of reservations that are not committed in time. A rule of concurrent
    /// always releases them, since its places are for live holders.
    ///
    /// ```
    /// # use earrrl::{OnExpiry, Rule};
    /// let rule: Rule = "token-bucket 10000 refill=100/s".parse()?;
    /// let rule = rule.with_on_expiry(OnExpiry::Release);
    /// assert_eq!(rule.on_expiry(), OnExpiry::Release);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_on_expiry(self, on_expiry: OnExpiry) -> Self {
        let releases = self.limit.is_concurrent();
        Self {
            on_expiry: if releases {
                OnExpiry::Release
            } else {
                on_expiry
            },
            ..self
        }
    }

    /// Returns the most bytes that the states of all clients may occupy; see
    /// [`Builder::max_bytes`](crate::Builder::max_bytes). `None` by default, and for algorithms
    /// whose states have a fixed size.
    pub fn max_bytes(&self) -> Option<usize> {
        self.max_bytes
    }

    /// Sets the most bytes that the states of all clients may occupy.
    ///
    /// ```
    /// use earrrl::Rule;
    /// let rule: Rule = "sliding-log 1000/1h".parse()?;
    /// assert_eq!(rule.with_max_bytes(1_000_000_000)?.max_bytes(), Some(1_000_000_000));
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the algorithm's states have a fixed size, since the capacity then
    /// determines the bytes.
    pub fn with_max_bytes(self, bytes: usize) -> Result<Self, RuleError> {
        if self.limit.fits_words() {
            let problem = format!("`{self}` keeps 22 bytes a client: its capacity bounds them");
            return Err(RuleError::new(problem).of("max_bytes"));
        }
        Ok(Self {
            max_bytes: Some(bytes),
            ..self
        })
    }

    /// Returns `cost` if the rule accepts it.
    ///
    /// ```
    /// # use earrrl::{Cost, Rule};
    /// # let rule = "gcra 1/s burst=60".parse::<Rule>()?.with_max_cost(Cost::from_units(10))?;
    /// assert_eq!(rule.accept(Cost::from_units(10))?, Cost::from_units(10));
    /// let error = rule.accept(Cost::from_units(11)).unwrap_err();
    /// assert_eq!(error.to_string(), "cost: 11 is above the rule's max_cost of 10");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns a [`RuleErrorKind::Cost`] error if the cost is above [`Rule::max_cost`].
    #[inline]
    pub fn accept(&self, cost: Cost) -> Result<Cost, RuleError> {
        if cost > self.max_cost {
            let problem = format!("{cost} is above the rule's max_cost of {}", self.max_cost);
            return Err(RuleError::of_kind(RuleErrorKind::Cost, problem).of("cost"));
        }
        Ok(cost)
    }

    /// Returns an error if requests under this rule cannot be decided in this mode: rules of
    /// concurrent are reserved, and neither checked nor charged.
    ///
    /// ```
    /// # use earrrl::{Mode, Rule};
    /// let rule: Rule = "concurrent 10 timeout=60s".parse()?;
    /// assert!(rule.accept_mode(Mode::Peek).is_ok());
    /// assert!(rule.accept_mode(Mode::Check).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error that says so.
    #[inline]
    pub fn accept_mode(&self, mode: Mode) -> Result<(), RuleError> {
        if mode == Mode::Peek || !self.limit.is_concurrent() {
            return Ok(());
        }
        Err(self.not_reserved())
    }

    #[cold]
    fn not_reserved(&self) -> RuleError {
        RuleError::new(format!(
            "`{self}` counts live reservations: reserve, instead of checking"
        ))
    }
}

impl<L: Into<Limit>> From<L> for Rule {
    /// Returns a rule that denies requests over the limit and accepts any cost.
    fn from(limit: L) -> Self {
        let limit = limit.into();
        let action = Action::Deny;
        let max_cost = Cost::MAX;
        let text = Arc::from(limit.text());
        let on_expiry = OnExpiry::Keep;
        Self {
            limit,
            action,
            max_cost,
            max_bytes: None,
            on_expiry,
            text,
        }
        .with_on_expiry(on_expiry)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let limit = parse(text)?;
        Ok(Self {
            text: text.trim().into(),
            ..Self::from(limit)
        })
    }
}

impl fmt::Display for Rule {
    /// Writes the rule's text as it was given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl PartialEq for Rule {
    /// Returns true if both rules make the same decisions within the same memory, even if their
    /// texts differ.
    fn eq(&self, other: &Self) -> bool {
        let of = |rule: &Self| {
            (
                rule.limit,
                rule.action,
                rule.max_cost,
                rule.max_bytes,
                rule.on_expiry,
            )
        };
        of(self) == of(other)
    }
}
