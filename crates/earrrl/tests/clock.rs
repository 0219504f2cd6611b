//! The machine's clock in a process that may not read the processor's counter.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use std::fs::read_to_string;
use std::process::{Command, Stdio};

use earrrl::{Clock, Limiter, Rule, SystemClock};
use rustix::process::{TimeStampCounterReadability, set_time_stamp_counter_readability};

use crate::starts::start;

/// Set in the process that is restricted.
const RESTRICTED: &str = "EARRRL_TEST_WITHOUT_COUNTER";

fn boot_time() -> f64 {
    let text = read_to_string("/proc/uptime").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Reading the counter, or the time in the usual way, would end this thread's process.
fn decide_without_counter() {
    set_time_stamp_counter_readability(TimeStampCounterReadability::RaiseSIGSEGV).unwrap();
    let clock = SystemClock::new();
    let from = boot_time();
    let start = clock.now();
    while boot_time() - from < 0.2 {}
    let to = boot_time();
    let end = clock.now();
    let passed = end.since(start).as_secs_f64();
    // Boot time is read in hundredths of a second, before the one instant and before the other.
    assert!(
        (passed - (to - from)).abs() < 10.0 && passed > 0.17,
        "{passed} of {}",
        to - from
    );
    let rule: Rule = "token-bucket 2 refill=1/d".parse().unwrap();
    let limiter: Limiter<u64> = Limiter::builder(rule).build().unwrap();
    let allowed = [(); 3].map(|()| limiter.check(&7).is_allowed());
    assert_eq!(allowed, [true, true, false]);
    set_time_stamp_counter_readability(TimeStampCounterReadability::Readable).unwrap();
}

#[test]
fn a_process_that_may_not_read_the_counter_is_told_boot_time() {
    if std::env::var_os(RESTRICTED).is_some() {
        return decide_without_counter();
    }
    let name = "clock::a_process_that_may_not_read_the_counter_is_told_boot_time";
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(this);
    command
        .args(["--exact", name])
        .env(RESTRICTED, "1")
        .stdout(Stdio::piped());
    let output = start(&mut command).wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
}
