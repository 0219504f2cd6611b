//! The tests of the public interface, in one binary.

mod algorithms;
mod clock;
mod conformance;
mod order;
mod state_file;
