//! Tables of inputs and expected answers from `testdata/vectors`, to 1e-9 relative.

mod concurrent;
mod data;
mod derived;
mod exponential;
mod gcra;
mod go_time_rate;
mod redis_run;
mod sliding;
mod three_rates;
mod weighted_credits;
mod windowed;

/// The file of `testdata/vectors` that has numbers for each algorithm.
const FILES: [(&str, &str); 8] = [
    ("recent-average", "derived"),
    ("exponential", "exponential"),
    ("token-bucket", "gcra"),
    ("fixed-window", "windowed"),
    ("sliding-log", "sliding"),
    ("sliding-window", "sliding"),
    ("sliding-counter", "sliding"),
    ("concurrent", "concurrent"),
];

#[test]
fn every_algorithm_has_vectors() {
    for algorithm in earrrl::internal::algorithms() {
        let file = FILES.iter().find(|(name, _)| *name == algorithm);
        let (_, file) =
            file.unwrap_or_else(|| panic!("vectors/mod.rs names no file for {algorithm}"));
        data::Vectors::exists(file);
    }
}
