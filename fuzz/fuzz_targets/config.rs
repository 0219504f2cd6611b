//! The TOML configuration: any text is read or refused, and a mistake has a place in the text.
#![no_main]

use earrrl_server::config::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // These fields name files, which a valid configuration reads.
    if text.contains("_file") || text.contains("xds") {
        return;
    }
    if let Err(error) = Config::parse(text, "limits.toml") {
        assert!(!error.problems.is_empty());
        for problem in error.problems {
            let line = problem.line.expect("a mistake has a line");
            assert!(
                (1..=text.matches('\n').count() + 1).contains(&line),
                "{problem}"
            );
            assert!(!problem.message.contains('\n'), "{problem}");
        }
    }
});
