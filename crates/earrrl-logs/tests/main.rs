//! The tests of the log tools through the public interface, in one binary.

mod figures;
mod inputs;
mod known_truth;
mod reading;
mod shapes;
