//! Whatever the limits, costs and clocks: an answer, and the right one.

mod clocks;
mod oracle;
mod whatever;
