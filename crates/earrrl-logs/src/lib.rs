#![doc = include_str!("../README.md")]

mod envelope;
pub mod format;
pub mod line;
pub mod plot;
pub mod reading;
pub mod replay;
pub mod report;
pub mod simulate;
pub mod suggest;
pub mod text;
