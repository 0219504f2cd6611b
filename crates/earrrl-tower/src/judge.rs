//! Judging requests outside of tower, for the middleware of other frameworks and languages.

use earrrl::{Engine, EngineError};
use http::request::Parts;

use crate::charges::RequestCharges;
use crate::conclusion::{Judged, Passed};
use crate::layer::RateLimitLayer;
use crate::service::Progress;

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
            return Judged::Pass(Passed::plain());
        }
        match shared.decide(&charges, &request.headers) {
            Progress::Concluded(judged) => judged,
            Progress::Pending(_) => {
                let error = EngineError::Unavailable("no answer at once".to_owned());
                shared.failed(&charges, &error, &request.headers)
            }
        }
    }
}
