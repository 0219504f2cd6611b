//! The tests of the log tools through the public interface, in one binary.

mod figures;
mod groups;
mod inputs;
mod known_truth;
mod reading;
mod shapes;
