//! Puts the requests of a log through rules.

mod run;
mod timeline;
mod trial;

pub use run::Replay;
pub use timeline::Timeline;
pub use trial::{Offender, Trial};
