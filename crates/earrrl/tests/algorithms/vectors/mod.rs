//! Tables of inputs and expected answers from `testdata/vectors`, to 1e-9 relative.

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
