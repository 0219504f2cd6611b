//! Costs that depend on the request.

use earrrl::Cost;
use http::Method;
use http::request::Parts;

use crate::key::target;
use crate::path::Paths;

/// Returns a closure for [`cost_by`](crate::RequestRule::cost_by) that looks up the cost by path.
/// The path is the route that axum matched, or otherwise the whole path in any of its spellings. Paths without an entry
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
    let spelled = |(path, cost): &(&str, Cost)| (Paths::TOLERANT.normalize_text(path), *cost);
    let normal: Vec<_> = costs.iter().map(spelled).collect();
    move |request| match route(request) {
        Some(route) => find(&costs, |known| *known == route),
        None => most(&normal, target(request)),
    }
}

/// Returns the highest cost of the interpretations of a target's path, so that no spelling costs less.
fn most(costs: &[(String, Cost)], target: &[u8]) -> Cost {
    let others = Paths::TOLERANT.others(target);
    let normal = Paths::TOLERANT.normalize(target);
    let cost = |path: &[u8]| find(costs, |known| known.as_bytes() == path);
    let most = match others.with(&normal) {
        Some(paths) => paths.map(cost).max(),
        None => costs.iter().map(|(_, cost)| *cost).max(),
    };
    most.unwrap_or(Cost::ONE)
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

/// Returns the route that axum matched.
fn route(request: &Parts) -> Option<&str> {
    #[cfg(feature = "axum")]
    if let Some(route) = request.extensions.get::<axum::extract::MatchedPath>() {
        return Some(route.as_str());
    }
    let _ = request;
    None
}
