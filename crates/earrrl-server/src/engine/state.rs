//! What an engine reports about itself.

/// How decisions are made at present, for `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// In one word.
    pub mode: &'static str,
    /// Why it is not the usual one, if it is not.
    pub trouble: Option<String>,
    /// Clients whose counts are to be handed over to what is shared.
    pub owed: Option<usize>,
}
