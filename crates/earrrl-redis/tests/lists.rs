//! The check that the lists of rules in the other files have every algorithm.
#![allow(clippy::unwrap_used, clippy::panic)]

use earrrl::Rule;

use crate::agreement::Listed;
use crate::{clocks, handover, near, outage, receipts, shared};

#[test]
fn every_algorithm_is_in_the_lists_of_rules() {
    let lists: [(&str, Vec<&str>, &[&str]); 6] = [
        ("clocks.rs", clocks::POLITE.into(), &[]),
        ("outage.rs", outage::RULES.into(), &[]),
        (
            "shared.rs",
            shared::BURSTS.map(|(text, _)| text).into(),
            &[],
        ),
        // Exponential rules have no near mode, and a lost count of theirs cannot be added later.
        ("near.rs", near::LEAKY.into(), &["exponential"]),
        (
            "handover.rs",
            handover::RULES.map(|(text, _)| text).into(),
            &["exponential"],
        ),
        (
            "receipts.rs",
            receipts::RULES.map(|(text, _)| text).into(),
            &["exponential"],
        ),
    ];
    // Requests under concurrent are reserved and not checked; concurrent.rs tests it.
    let is_checked = |name: &&str| *name != "concurrent";
    for (file, rules, except) in lists {
        let algorithm = |text: &&str| text.parse::<Rule>().unwrap().limit().visit(Listed);
        let tried: Vec<&str> = rules.iter().map(algorithm).collect();
        let needed = earrrl::internal::algorithms().filter(is_checked);
        for name in needed.filter(|name| !except.contains(name)) {
            assert!(tried.contains(&name), "no rule of {file} is {name}");
        }
    }
}
