//! Judging requests outside of tower, for the middleware of other frameworks and languages.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use earrrl::{Engine, EngineError};
use http::request::Parts;
use http::{Extensions, Response, response};

use crate::charges::RequestCharges;
use crate::conclusion::{Conclusion, Pass};
use crate::layer::RateLimitLayer;
use crate::service::Progress;

/// The treatment of a request that [`RateLimitLayer::judge`] returns.
#[derive(Debug)]
#[non_exhaustive]
pub enum Judged {
    /// The request is passed on, after its delay.
    Pass(Passed),
    /// The request is not passed on. This is its response.
    Refuse(Response<Bytes>),
}

/// A request that is passed on: first wait for [`delay`](Self::delay), then call
/// [`enter`](Self::enter), pass the request on, and call [`leave`](Self::leave) with its response.
pub struct Passed(Pass);

impl Passed {
    /// Returns the time for which the request must be held back; zero for most requests.
    pub fn delay(&self) -> Duration {
        self.0.delay
    }

    /// Adds the [`Verdict`](crate::Verdict), the [`Settlement`](crate::Settlement) and the
    /// [`RequestHold`](crate::RequestHold), if there are any, to the request's extensions. To be called just before the request is passed on: from
    /// then on, a request without a response is charged, too.
    pub fn enter(&mut self, request: &mut Extensions) {
        self.0.enter(request);
    }

    /// Adds the headers to the response, charges the costs that depend on it, and commits the
    /// reservation.
    pub fn leave(mut self, response: &mut response::Parts) {
        if let Some(cost_after) = self.0.leave(&mut response.headers).cost_after {
            // An engine in memory has charged the cost when this value is dropped.
            drop(cost_after.charge(response));
        }
    }
}

impl fmt::Debug for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passed")
            .field("delay", &self.0.delay)
            .finish_non_exhaustive()
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
        let shared = &self.shared;
        let mut charges = RequestCharges::default();
        if let Err(status) = shared.read(&mut charges, request) {
            return Judged::Refuse(shared.no_key(status, &request.headers));
        }
        if charges.is_empty() || shared.admit_at_once(&charges) {
            return Judged::Pass(Passed(Pass::plain()));
        }
        let conclusion = match shared.decide(&charges, &request.headers) {
            Progress::Concluded(conclusion) => conclusion,
            Progress::Pending(_) => {
                let error = EngineError::Unavailable("no answer at once".to_owned());
                shared.failed(&charges, &error, &request.headers)
            }
        };
        match conclusion {
            Conclusion::Pass(pass) => Judged::Pass(Passed(pass)),
            Conclusion::Refuse(response) => Judged::Refuse(response),
        }
    }
}
