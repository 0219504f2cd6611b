//! Replays the requests of a log under rules, and counts their decisions.

mod run;
mod timeline;
mod trial;

pub use run::Replay;
pub use timeline::Timeline;
pub use trial::{Offender, Trial};
