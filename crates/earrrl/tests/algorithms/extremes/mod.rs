//! Extreme limits, costs and clocks: every request gets an answer, and the right one.

mod clocks;
mod oracle;
mod whatever;
