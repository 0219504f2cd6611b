//! The layer and its builder.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use earrrl::{Engine, EngineError, HoldTerms, MAX_CHARGES, MemoryEngine, Mode, Rule};
use http::request::Parts;
use http::{Response, StatusCode};
use tower_layer::Layer;

use crate::charges::{LayerRule, RequestCharges, Role};
use crate::conclusion::Judged;
use crate::judge::Progress;
use crate::request_rule::RequestRule;
use crate::response::{Denial, is_grpc};
use crate::service::RateLimit;
use crate::shared::{OnFailure, Settings, SharedLimits};
use crate::verdict::Event;

/// A layer that limits the requests to the service that it wraps. Its clones share the engine, its
/// clients and all settings.
///
/// ```
/// use earrrl::MemoryEngine;
/// use earrrl_tower::{ClientAddress, RateLimitLayer, RequestRule};
///
/// let per_address = RequestRule::new(
///     "per-address",
///     "recent-average 5/s half-life=30s".parse()?,
///     ClientAddress::default(),
/// );
/// let layer = RateLimitLayer::builder(MemoryEngine::new(100_000)?).rule(per_address).build()?;
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimitLayer<E> {
    pub(crate) shared: Arc<SharedLimits<E>>,
}

/// The settings of a [`RateLimitLayer`].
///
/// ```
/// use earrrl::MemoryEngine;
/// use earrrl_tower::{Event, OnFailure, RateLimitLayer, RequestRule, key};
/// use http::StatusCode;
///
/// let layer = RateLimitLayer::builder(MemoryEngine::new(100_000)?)
///     .rule(RequestRule::new("all", "gcra 1000/s burst=2000".parse()?, key::Everyone))
///     .status(StatusCode::SERVICE_UNAVAILABLE)
///     .headers_on_allowed(false)
///     .x_rate_limit(true)
///     .max_held(100)
///     .on_failure(OnFailure::Deny)
///     .on_event(|event| {
///         if let Event::EngineFailed(error) = event {
///             eprintln!("{error}");
///         }
///     })
///     .build()?;
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Builder<E> {
    engine: E,
    rules: Vec<RequestRule>,
    settings: Settings,
}

impl<E: Engine> RateLimitLayer<E> {
    /// Returns the settings of a layer over an engine: a [`MemoryEngine`](earrrl::MemoryEngine), or
    /// an engine that several machines share.
    ///
    /// ```
    /// use earrrl::MemoryEngine;
    /// use earrrl_tower::{RateLimitLayer, RequestRule, key};
    /// let rule = RequestRule::new("all", "gcra 1000/s burst=2000".parse()?, key::Everyone);
    /// let layer = RateLimitLayer::builder(MemoryEngine::new(10)?).rule(rule).build()?;
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(engine: E) -> Builder<E> {
        let settings = Settings {
            status: StatusCode::TOO_MANY_REQUESTS,
            headers_on_allowed: true,
            x_rate_limit: false,
            always_verdict: false,
            max_held: 1000,
            on_failure: OnFailure::default(),
            hold_terms: HoldTerms::default(),
            respond: None,
            hook: None,
        };
        Builder {
            engine,
            rules: Vec::new(),
            settings,
        }
    }

    /// Changes the parameters of a rule or plan in all clones of the layer. Its clients keep their
    /// history unless the algorithm or its time changes.
    ///
    /// This may block for a second while many clients are looked at, so asynchronous code calls it on
    /// a thread for that, such as that of `tokio::task::spawn_blocking`.
    ///
    /// ```
    /// # use earrrl::MemoryEngine;
    /// # use earrrl_tower::{RateLimitLayer, RequestRule, key};
    /// let rule = RequestRule::new("all", "gcra 1000/s burst=2000".parse()?, key::Everyone);
    /// let layer = RateLimitLayer::builder(MemoryEngine::new(1)?).rule(rule).build()?;
    /// layer.change("all", &"gcra 500/s burst=1000".parse()?)?;
    /// assert!(layer.change("everyone", &"gcra 1/s burst=1".parse()?).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`LayerError::UnknownName`] if neither a rule nor a plan has this name, and
    /// [`LayerError::Engine`] if the engine refuses the rule or fails.
    pub fn change(&self, name: &str, rule: &Rule) -> Result<(), LayerError> {
        let is_it = |known: &LayerRule| &*known.name == name;
        // A rule or plan comes before the other limits of its clients, which have its name.
        let place = self.shared.prepared.load().iter().position(is_it);
        let place = place.ok_or_else(|| LayerError::UnknownName(name.to_owned()))?;
        Ok(self.shared.change(place, rule)?)
    }

    /// Returns the engine, by which clients can be peeked at, refunded and reset.
    ///
    /// ```
    /// # use earrrl::MemoryEngine;
    /// # use earrrl_tower::{ClientAddress, RateLimitLayer, RequestRule};
    /// use earrrl::Engine;
    /// let rule = RequestRule::new("login", "gcra 1/m burst=5".parse()?, ClientAddress::default());
    /// let layer = RateLimitLayer::builder(MemoryEngine::new(1000)?).rule(rule).build()?;
    /// let login = layer.engine().prepare("login", &"gcra 1/m burst=5".parse()?)?;
    /// layer.engine().reset(login, b"192.0.2.7").into_inner()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn engine(&self) -> &E {
        &self.shared.engine
    }

    /// Returns the number of requests that rules with the action `delay` hold back at present.
    ///
    /// ```
    /// use earrrl::MemoryEngine;
    /// use earrrl_tower::{RateLimitLayer, RequestRule, key};
    /// let rule = RequestRule::new("all", "gcra 1000/s burst=2000".parse()?, key::Everyone);
    /// let layer = RateLimitLayer::builder(MemoryEngine::new(10)?).rule(rule).build()?;
    /// assert_eq!(layer.held(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn held(&self) -> usize {
        self.shared.held()
    }
}

impl<E> RateLimitLayer<E>
where
    E: Engine + Send + Sync + 'static,
    E::Decide: Unpin,
{
    /// Judges a request as the layer's service does, for frameworks that are not built on tower. It
    /// does not wait, so it suits engines in memory: while an engine has not answered, requests are
    /// treated as [`OnFailure`](crate::OnFailure) says.
    ///
    /// ```
    /// use earrrl::MemoryEngine;
    /// use earrrl_tower::{Judged, RateLimitLayer, RequestRule, key};
    ///
    /// let rule = RequestRule::new("all", "gcra 1/h burst=1".parse()?, key::Everyone);
    /// let layer = RateLimitLayer::builder(MemoryEngine::new(10)?).rule(rule).build()?;
    /// let mut request = http::Request::new(()).into_parts().0;
    /// let mut response = http::Response::new(()).into_parts().0;
    /// if let Judged::Pass(mut passed) = layer.judge(&request) {
    ///     passed.enter(&mut request.extensions);
    ///     passed.leave(&mut response);
    /// }
    /// assert_eq!(response.headers["ratelimit-policy"], "\"all\";q=1;w=3600");
    /// let Judged::Refuse(denial) = layer.judge(&request) else { panic!("the limit is 1") };
    /// assert_eq!(denial.status(), 429);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn judge(&self, request: &Parts) -> Judged {
        let mut charges = RequestCharges::default();
        match self.shared.judge(&mut charges, request) {
            Progress::Concluded(judged) => judged,
            Progress::Pending(_) => {
                let error = EngineError::Unavailable("no answer at once".to_owned());
                let is_grpc = || is_grpc(&request.headers);
                self.shared.failed(&charges, &error, &is_grpc)
            }
        }
    }
}

impl<E: Engine> Builder<E> {
    /// Adds a rule. A request is charged to all rules that apply, or to none if one of them denies it.
    #[must_use]
    pub fn rule(mut self, rule: RequestRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the status of denials, 429 by default. gRPC calls get RESOURCE_EXHAUSTED in any case.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.settings.status = status;
        self
    }

    /// Adds `RateLimit` headers to the responses of allowed requests, or only to denials. By default
    /// all have them.
    #[must_use]
    pub fn headers_on_allowed(mut self, yes: bool) -> Self {
        self.settings.headers_on_allowed = yes;
        self
    }

    /// Adds the older `X-RateLimit-*` headers as well. By default they are not sent.
    #[must_use]
    pub fn x_rate_limit(mut self, yes: bool) -> Self {
        self.settings.x_rate_limit = yes;
        self
    }

    /// Adds a [`Verdict`](crate::Verdict) to the extensions of every request, not only of those over
    /// a limit.
    #[must_use]
    pub fn always_verdict(mut self, yes: bool) -> Self {
        self.settings.always_verdict = yes;
        self
    }

    /// Sets the number of requests that rules with the action `delay` may hold back at the same
    /// time, 1000 by default. Further requests are denied. The rule itself bounds the time for
    /// which a request is held back.
    #[must_use]
    pub fn max_held(mut self, requests: usize) -> Self {
        self.settings.max_held = requests;
        self
    }

    /// Sets the treatment of requests while the engine fails. By default they pass.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.settings.on_failure = on_failure;
        self
    }

    /// Sets the terms of the reservations under rules that are
    /// [`reserved`](crate::RequestRule::reserved): the time after which a reservation expires, five
    /// minutes by default, and whether less than the estimate may be granted.
    ///
    /// ```
    /// use earrrl::{HoldTerms, MemoryEngine};
    /// use earrrl_tower::RateLimitLayer;
    /// use std::time::Duration;
    /// let terms = HoldTerms::default().ttl(Duration::from_secs(600)).at_most();
    /// let builder = RateLimitLayer::builder(MemoryEngine::new(10)?).hold_terms(terms);
    /// # let _ = builder;
    /// # Ok::<(), earrrl::BuildError>(())
    /// ```
    #[must_use]
    pub fn hold_terms(mut self, terms: HoldTerms) -> Self {
        self.settings.hold_terms = terms;
        self
    }

    /// Sets a closure that returns the responses to denied requests. The layer adds its headers to
    /// them. The closure is not called for gRPC calls, which get a status and no body.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use earrrl::MemoryEngine;
    /// use earrrl_tower::RateLimitLayer;
    /// let builder = RateLimitLayer::builder(MemoryEngine::new(10)?).respond_with(|denial| {
    ///     let mut response = http::Response::new(Bytes::from_static(b"Not so fast!\n"));
    ///     *response.status_mut() = denial.status;
    ///     response
    /// });
    /// # let _ = builder;
    /// # Ok::<(), earrrl::BuildError>(())
    /// ```
    #[must_use]
    pub fn respond_with(
        mut self,
        respond: impl Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.settings.respond = Some(Box::new(respond));
        self
    }

    /// Sets a closure that is called with every decision and failure, such as for metrics.
    #[must_use]
    pub fn on_event(mut self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.settings.hook = Some(Box::new(hook));
        self
    }

    /// Prepares the rules in the engine and returns the layer.
    ///
    /// Two layers over one engine need different names. If both prepare the same rule under one
    /// name, they share its clients, as clones of one layer do.
    ///
    /// # Errors
    /// Returns [`LayerError::NameTwice`] if two rules or plans of the layer have one name,
    /// [`LayerError::NameTaken`] if the engine has another rule under a name, and
    /// [`LayerError::Engine`] if a name is invalid, there are more than
    /// [`MAX_CHARGES`](earrrl::MAX_CHARGES) rules, a rule of concurrent is not reserved, or the
    /// engine fails.
    pub fn build(self) -> Result<RateLimitLayer<E>, LayerError> {
        if self.rules.len() > MAX_CHARGES {
            return Err(EngineError::Charges(self.rules.len()).into());
        }
        self.settings
            .hold_terms
            .check()
            .map_err(EngineError::from)?;
        for rule in self.rules.iter().filter(|rule| !rule.reserved) {
            let mut named = rule.named_rules();
            named
                .try_for_each(|(_, rule)| rule.accept_mode(Mode::Check))
                .map_err(EngineError::from)?;
        }
        let mut names = HashSet::new();
        for (name, rule) in self.rules.iter().flat_map(RequestRule::named_rules) {
            if !names.insert(name) {
                return Err(LayerError::NameTwice(name.to_owned()));
            }
            // All names are checked before the engine is changed at all.
            match self.engine.prepared(name) {
                Some(other) if other != *rule => {
                    let name = name.to_owned();
                    let rule = other.to_string();
                    return Err(LayerError::NameTaken { name, rule });
                }
                _ => {}
            }
        }
        let local = match self.settings.on_failure {
            OnFailure::Local(capacity) => Some(MemoryEngine::new(capacity)),
            _ => None,
        };
        let local = local.transpose();
        let local = local.map_err(|error| EngineError::Unavailable(error.to_string()))?;
        let mut prepared = Vec::new();
        let mut rules = Vec::with_capacity(self.rules.len());
        for rule in self.rules {
            let first = prepared.len();
            for (place, (name, limit)) in rule.named_rules().enumerate() {
                let has_others = place == 0 && rule.limit_by.is_some();
                let role = if has_others { Role::Base } else { Role::Only };
                let status = self.settings.status;
                prepared.push(LayerRule::new(
                    &self.engine,
                    local.as_ref(),
                    name,
                    limit.clone(),
                    role,
                    status,
                )?);
            }
            rules.push((rule, first));
        }
        let shared = SharedLimits::new(self.engine, local, rules, prepared, self.settings);
        Ok(RateLimitLayer {
            shared: Arc::new(shared),
        })
    }
}

/// An error in building or changing a layer.
///
/// ```
/// use earrrl::MemoryEngine;
/// use earrrl_tower::{LayerError, RateLimitLayer, RequestRule, key};
/// let builder = RateLimitLayer::builder(MemoryEngine::new(10)?)
///     .rule(RequestRule::new("all", "gcra 1/s burst=5".parse()?, key::Everyone))
///     .rule(RequestRule::new("all", "gcra 9/s burst=9".parse()?, key::Everyone));
/// assert_eq!(builder.build().err(), Some(LayerError::NameTwice("all".to_owned())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerError {
    /// Two rules or plans of the layer have this name.
    NameTwice(String),
    /// The engine already has another rule under a name, perhaps from another layer.
    NameTaken {
        /// The name that is taken.
        name: String,
        /// The text of the rule that the engine has.
        rule: String,
    },
    /// No rule and no plan has this name.
    UnknownName(String),
    /// The engine refused a rule, or failed.
    Engine(EngineError),
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTwice(name) => write!(
                f,
                "name: two rules or plans of the layer are called `{}`; each needs a name of its own",
                name.escape_debug()
            ),
            Self::NameTaken { name, rule } => write!(
                f,
                "name: the engine already has a rule `{}`, which is `{rule}`; use another name, or \
                 change that rule by `RateLimitLayer::change`",
                name.escape_debug()
            ),
            Self::UnknownName(name) => {
                write!(
                    f,
                    "name: the layer has neither a rule nor a plan `{}`",
                    name.escape_debug()
                )
            }
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LayerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => Some(error),
            _ => None,
        }
    }
}

impl From<EngineError> for LayerError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl<E> Clone for RateLimitLayer<E> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<E> fmt::Debug for RateLimitLayer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

impl<S, E> Layer<S> for RateLimitLayer<E> {
    type Service = RateLimit<S, E>;

    fn layer(&self, inner: S) -> RateLimit<S, E> {
        RateLimit::new(inner, Arc::clone(&self.shared))
    }
}
