//! Costs that depend on the request.

use earrrl::Cost;
use http::Method;
use http::request::Parts;

/// Returns a closure for [`cost_by`](crate::RequestRule::cost_by) that looks up the cost by path.
/// The path is the route that axum matched, or otherwise the whole path. Paths without an entry
/// cost 1.
///
/// ```
/// use earrrl::{Cost, Rule};
/// use earrrl_tower::{ClientAddress, RequestRule, cost};
/// let rule: Rule = "gcra 10/s burst=100".parse()?;
/// let by_address = RequestRule::new("api", rule, ClientAddress::default())
///     .cost_by(cost::by_path([("/export/{id}", Cost::from_units(20))]));
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub fn by_path(
    costs: impl IntoIterator<Item = (&'static str, Cost)>,
) -> impl Fn(&Parts) -> Cost + Send + Sync + 'static {
    let costs: Vec<_> = costs.into_iter().collect();
    move |request| find(&costs, |known| *known == path(request))
}

/// Returns a closure for [`cost_by`](crate::RequestRule::cost_by) that looks up the cost by method.
/// Methods without an entry cost 1.
///
/// ```
/// use earrrl::{Cost, Rule};
/// use earrrl_tower::{ClientAddress, RequestRule, cost};
/// use http::Method;
/// let rule: Rule = "gcra 10/s burst=100".parse()?;
/// let writes_cost_more = RequestRule::new("api", rule, ClientAddress::default())
///     .cost_by(cost::by_method([(Method::POST, Cost::from_units(5))]));
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub fn by_method(
    costs: impl IntoIterator<Item = (Method, Cost)>,
) -> impl Fn(&Parts) -> Cost + Send + Sync + 'static {
    let costs: Vec<_> = costs.into_iter().collect();
    move |request| find(&costs, |known| *known == request.method)
}

fn find<T>(costs: &[(T, Cost)], is: impl Fn(&T) -> bool) -> Cost {
    costs
        .iter()
        .find(|(known, _)| is(known))
        .map_or(Cost::ONE, |(_, cost)| *cost)
}

fn path(request: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(path) = request.extensions.get::<axum::extract::MatchedPath>() {
        return path.as_str();
    }
    request.uri.path()
}
