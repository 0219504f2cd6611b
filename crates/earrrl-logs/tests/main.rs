//! The tests of the log tools through the public interface, in one binary.

mod known_truth;
