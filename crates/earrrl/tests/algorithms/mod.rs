//! The algorithms against numbers from elsewhere, against what must always hold, and against
//! exact arithmetic.

// A test fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used, clippy::panic)]

mod accuracy;
mod client;
mod extremes;
mod properties;
mod vectors;
