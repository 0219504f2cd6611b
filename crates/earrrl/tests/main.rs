//! The tests of the public interface, in one binary.

mod algorithms;
mod conformance;
mod order;
mod starts;
mod state_file;
mod waits;
