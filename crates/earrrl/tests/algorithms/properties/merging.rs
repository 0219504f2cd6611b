//! Recent-average states of several nodes merge to what one node would hold.

use earrrl::algorithm::Algorithm;
use earrrl::{Limit, Nanos};
use proptest::prelude::*;

use super::strategies::{cases, recent_averages, requests, starts};
use crate::algorithms::client::close;

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn nodes_hold_together_what_one_would(
        limit in recent_averages(),
        start in starts(),
        (requests, places) in (requests(60), proptest::collection::vec(0usize..4, 60)),
    ) {
        let (mut nodes, mut one, mut now) = ([None; 4], None, start);
        for (request, place) in requests.iter().zip(places) {
            now = request.after(now, &Limit::from(limit));
            one = Some(limit.charge(one, now, request.cost));
            nodes[place] = Some(limit.charge(nodes[place], now, request.cost));
        }
        let merged = nodes.into_iter().flatten().reduce(|a, b| limit.merge(a, b));
        let backwards = nodes.into_iter().rev().flatten().reduce(|a, b| limit.merge(a, b));
        let count = |state: Option<_>| limit.count(state.as_ref(), now);
        prop_assert!(close(count(merged), count(one), 1e-9), "{merged:?} {one:?}");
        prop_assert!(close(count(backwards), count(one), 1e-9), "{backwards:?} {one:?}");
        prop_assert_eq!(merged.is_some(), one.is_some());
    }

    #[test]
    fn order_by_state_is_order_by_rate(
        limit in recent_averages(), counts in (1e-6..1e6, 1e-6..1e6), later in 0u64..1 << 40,
    ) {
        let start = Nanos::from_secs(1_700_000_000);
        let state = |count| limit.state_with_count(count, start).unwrap();
        let (a, b) = (state(counts.0), state(counts.1));
        let now = Nanos::new(start.get() + later);
        let (x, y) = (limit.count(Some(&a), now), limit.count(Some(&b), now));
        prop_assert!(x == y || (x < y) == (a < b));
    }
}
