//! The results of the functions of rules. The package calls them before a request is judged; the layer finds them among
//! the extensions of the request and of its response.

use earrrl::{Cost, Rule};
use http::request::Parts;

/// The results of a rule's functions for one request.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// True if the rule does not apply.
    pub is_exempt: bool,
    /// The keys that functions returned, in the order of the key's parts; `None` for a missing one.
    pub keys: Vec<Option<Vec<u8>>>,
    /// The place of the plan that applies.
    pub plan: Option<usize>,
    /// The text of the limit that a function returned.
    pub limit: Option<String>,
    /// The cost that a function returned.
    pub cost: Option<Cost>,
}

/// The answers of all rules, among a request's extensions.
#[derive(Clone)]
pub(crate) struct AllAnswers(pub(crate) Vec<Answers>);

/// The limits of all rules for a request, among its extensions.
#[derive(Clone)]
pub(crate) struct Limits(pub(crate) Vec<Option<Rule>>);

/// The costs by the response of all rules, among a response's extensions.
#[derive(Clone)]
pub(crate) struct CostsAfter(pub(crate) Vec<Cost>);

/// Returns the answers of the rule at a place of the layer.
pub(crate) fn answers(request: &Parts, place: usize) -> Option<&Answers> {
    request.extensions.get::<AllAnswers>()?.0.get(place)
}
