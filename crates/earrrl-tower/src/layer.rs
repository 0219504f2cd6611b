//! The layer, and how it is built.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use earrrl::{Engine, EngineError, MAX_CHARGES, Rule};
use http::{Response, StatusCode};
use tower_layer::Layer;

use crate::event::Event;
use crate::known::Known;
use crate::request_rule::RequestRule;
use crate::response::Denial;
use crate::service::RateLimit;
use crate::shared::{OnFailure, Settings, Shared};

/// Limits the requests to the service it is laid around. Clones share one engine and its clients.
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
    shared: Arc<Shared<E>>,
}

/// Builds a [`RateLimitLayer`].
pub struct Builder<E> {
    engine: E,
    rules: Vec<RequestRule>,
    settings: Settings,
}

impl<E: Engine> RateLimitLayer<E> {
    /// Begins a layer over an engine: [`earrrl::MemoryEngine`], or one that several machines share.
    pub fn builder(engine: E) -> Builder<E> {
        let settings = Settings {
            status: StatusCode::TOO_MANY_REQUESTS,
            headers_on_allowed: true,
            x_rate_limit: false,
            always_verdict: false,
            max_held: 1000,
            on_failure: OnFailure::default(),
            respond: None,
            hook: None,
        };
        Builder { engine, rules: Vec::new(), settings }
    }

    /// Gives a rule or a plan other parameters, for all clones at once. Its clients keep their
    /// history where the algorithm stays.
    ///
    /// # Errors
    /// When the layer has no such rule, or its engine fails.
    pub fn change(&self, name: &str, rule: &Rule) -> Result<(), LayerError> {
        if !self.shared.known.load().iter().any(|known| &*known.name == name) {
            return Err(LayerError::UnknownName(name.to_owned()));
        }
        Ok(self.shared.change(name, rule)?)
    }

    /// The engine: to peek at clients, refund or reset them.
    pub fn engine(&self) -> &E {
        &self.shared.engine
    }

    /// How many requests are held back at present.
    pub fn held(&self) -> usize {
        self.shared.held()
    }
}

impl<E: Engine> Builder<E> {
    /// Adds a rule. A request is charged to all that apply, or to none where one denies it.
    #[must_use]
    pub fn rule(mut self, rule: RequestRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// The status of a denial: 429 unless another is asked for.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.settings.status = status;
        self
    }

    /// Whether responses to requests that were let through carry `RateLimit` headers, too: they do
    /// unless this says otherwise.
    #[must_use]
    pub fn headers_on_allowed(mut self, yes: bool) -> Self {
        self.settings.headers_on_allowed = yes;
        self
    }

    /// Adds the older `X-RateLimit-*` headers.
    #[must_use]
    pub fn x_rate_limit(mut self, yes: bool) -> Self {
        self.settings.x_rate_limit = yes;
        self
    }

    /// Puts a [`crate::Verdict`] into every request, not only into those that are over a limit.
    #[must_use]
    pub fn always_verdict(mut self, yes: bool) -> Self {
        self.settings.always_verdict = yes;
        self
    }

    /// How many requests may be held back at once by rules that delay: 1000 unless another number is
    /// asked for. Those beyond are denied. For how long one is held at most, its rule says.
    #[must_use]
    pub fn max_held(mut self, requests: usize) -> Self {
        self.settings.max_held = requests;
        self
    }

    /// What becomes of requests while the engine fails: they pass unless another way is asked for.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.settings.on_failure = on_failure;
        self
    }

    /// Answers denied requests by a closure. The headers are added afterwards; calls of gRPC are
    /// answered in their own way.
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

    /// Tells a closure of every decision and failure: for metrics.
    #[must_use]
    pub fn on_event(mut self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.settings.hook = Some(Box::new(hook));
        self
    }

    /// Prepares the rules.
    ///
    /// # Errors
    /// When a name is invalid or comes twice, there are more rules than one request can be charged
    /// to, or the engine fails.
    pub fn build(self) -> Result<RateLimitLayer<E>, LayerError> {
        if self.rules.len() > MAX_CHARGES {
            return Err(EngineError::Charges(self.rules.len()).into());
        }
        let mut names = HashSet::new();
        let mut known = Vec::new();
        let mut rules = Vec::with_capacity(self.rules.len());
        for rule in self.rules {
            let first = known.len();
            let own = std::iter::once((&rule.name, &rule.rule));
            for (name, rule) in own.chain(rule.plans.iter().map(|plan| (&plan.name, &plan.rule))) {
                if !names.insert(name.clone()) {
                    return Err(LayerError::NameTwice(name.clone()));
                }
                known.push(Known::new(&self.engine, name, rule.clone(), self.settings.status)?);
            }
            rules.push((rule, first));
        }
        let shared = Shared::new(self.engine, rules, known, self.settings)?;
        Ok(RateLimitLayer { shared: Arc::new(shared) })
    }
}

/// Why a layer was not built or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerError {
    /// Two rules or plans have this name.
    NameTwice(String),
    /// No rule and no plan has this name.
    UnknownName(String),
    /// The engine refused a rule.
    Engine(EngineError),
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTwice(name) => write!(f, "name: `{}` comes twice", name.escape_debug()),
            Self::UnknownName(name) => {
                write!(f, "name: `{}` is no rule and no plan of this layer", name.escape_debug())
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
        Self { shared: Arc::clone(&self.shared) }
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
