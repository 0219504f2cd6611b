//! The state of the engine, as `/readyz` reports it.

/// The way in which the engine makes decisions at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineState {
    /// The name of the engine's mode, such as `redis` or `local`.
    pub mode: &'static str,
    /// The reason why the mode is not the usual one; `None` in the usual mode.
    pub trouble: Option<String>,
    /// The number of clients whose counts are still to be sent to Redis.
    pub owed: Option<usize>,
}
