//! Corrections of a client's record: what was charged is taken back, what was counted elsewhere added.

use std::slice::from_ref;
use std::sync::Arc;

use earrrl::Nanos;

use crate::algorithm::{Adjustment, Packed, micros};
use crate::convert::{converting, done_or_foreign};
use crate::link::{Fault, Link};
use crate::request::AskedCharge;
use crate::shared::Shared;

impl Shared {
    /// Takes a request back or adds one, atomically, within the deadline.
    pub(crate) async fn adjust(
        self: &Arc<Self>,
        asked: &AskedCharge,
        adjustment: Adjustment,
        now: Option<Nanos>,
    ) -> Result<(), Fault> {
        let link = self.link(asked.group)?;
        let call = self.adjust_over(link, asked, adjustment, now);
        self.within(self.options.deadline, asked.group, call).await
    }

    /// As [`Shared::adjust`], over a given connection and without a deadline.
    async fn adjust_over(
        self: &Arc<Self>,
        link: Link,
        asked: &AskedCharge,
        adjustment: Adjustment,
        now: Option<Nanos>,
    ) -> Result<(), Fault> {
        let argument = &self.adjustment(asked, &adjustment, now);
        let (script, key) = (self.scripts.adjust(asked.rule.kind), from_ref(&asked.key));
        converting(self, link, |mut link| async move {
            let answer = link.call(script, key, from_ref(argument)).await?;
            Ok(done_or_foreign(&answer, asked, self.now(now)))
        })
        .await
    }

    /// What a script reads of an adjustment.
    pub(crate) fn adjustment(
        &self,
        asked: &AskedCharge,
        adjustment: &Adjustment,
        now: Option<Nanos>,
    ) -> Vec<u8> {
        let sign = if adjustment.back { -1.0 } else { 1.0 };
        let mut head = Packed(vec![u8::from(adjustment.back)]);
        let time = now.map_or(-1.0, micros);
        head.numbers(&[time, adjustment.when, adjustment.alone.0, adjustment.alone.1]);
        head.0.extend(asked.rule.parameters(adjustment.cost, self.options.linger, sign));
        head.0
    }
}
