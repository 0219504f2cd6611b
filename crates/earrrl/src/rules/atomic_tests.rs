use super::*;
use crate::cost::Cost;
use crate::decision::Action;
use crate::rule::Rule;
use crate::store::Clients;
use crate::store::table::KeyHash;

const NOW: Nanos = Nanos::from_secs(1_800_000_000);

/// A request under three rules is judged; before it is charged, another request takes the rest of
/// the last rule's quota.
#[test]
fn charges_are_taken_back_when_another_rule_denies_meanwhile() {
    let rules = ["gcra 1/s burst=1", "gcra 1/s burst=9", "gcra 1/s burst=2"];
    let [observing, own, shared] = rules.map(|text| text.parse::<Rule>().unwrap());
    let rules = [observing.with_action(Action::Observe).unwrap(), own, shared];
    let clients = rules
        .each_ref()
        .map(|rule| Clients::new(rule.limit(), 1, None).unwrap());
    let part = |nth: usize| Part {
        rule: &rules[nth],
        clients: &clients[nth],
        key: KeyHash::from_bits(1 << 40 | 77),
        cost: Cost::ONE,
    };
    let parts = [0, 1, 2].map(part);
    // The first rule only observes and is over its limit, so the request is not charged to it, and
    // there is no charge to take back.
    parts[0].charge(Mode::Charge, NOW);
    parts[2].charge(Mode::Charge, NOW);
    let places: Each<_> = parts.iter().map(Part::place).collect();
    let shards = Shards::lock(&parts);
    let mut request = AtomicRequest {
        parts: &parts,
        places: &places,
        now: NOW,
        shards,
    };
    let mut answers = request.judge_all();
    assert!(all_pass(&answers));
    assert!(parts[2].charge(Mode::Check, NOW).0.allowed);
    request.charge_leaky_words(&mut answers);
    assert!(!all_pass(&answers));
    assert_eq!(
        parts.map(|part| part.charge(Mode::Peek, NOW).1.remaining),
        [0, 9, 0]
    );
}
