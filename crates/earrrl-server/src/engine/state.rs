//! The state that an engine reports.

/// The way in which decisions are made at present, for `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineState {
    /// The mode's name.
    pub mode: &'static str,
    /// The reason if the mode is not the usual one.
    pub trouble: Option<String>,
    /// The number of clients whose counts are still to be sent to Redis.
    pub owed: Option<usize>,
}
