//! Questions to an engine that is waited for: as many of a client's as may be are asked together,
//! and answered in order.
//!
//! They are sent in order, too, over the engine's one connection, so requests about one key are
//! decided in the order in which they came. Every other command waits for those before it, and those
//! after it wait for it.

use futures_util::future::join_all;

use super::client::Client;
use super::question::Questions;
use crate::service::rules::ActiveRules;

/// An upper estimate of the bytes that a question in flight takes, besides `COPIES` copies of the
/// request itself.
const TAKES: usize = 2048;
const COPIES: usize = 4;

impl Client {
    /// Answers the questions. Returns `false` if memory is short even for one of them.
    pub(super) async fn answer_together(
        &mut self,
        input: &[u8],
        rules: &ActiveRules,
        questions: &mut Questions,
        output: &mut Vec<u8>,
    ) -> bool {
        let Some(at_once) = self.room(input.len() + output.len(), questions) else {
            self.refuse_for_memory(output);
            return false;
        };
        for together in questions.chunks(at_once) {
            let answers = together.iter().map(async |(start, kept, question, hash)| {
                let mut out = Vec::new();
                let request = kept.within(&input[*start..]);
                self.session.answer(*question, *hash, request, rules, &mut out).await;
                out
            });
            for answer in join_all(answers).await {
                output.extend_from_slice(&answer);
            }
        }
        questions.clear();
        true
    }

    /// Returns the number of questions that may be in flight together: all of them or one, or
    /// `None` if memory is short even for one.
    fn room(&self, held: usize, questions: &Questions) -> Option<usize> {
        let takes = questions.iter().map(|(_, kept, ..)| TAKES + COPIES * kept.consumed());
        if self.connection.hold(held + takes.clone().sum::<usize>()) {
            return Some(questions.len().max(1));
        }
        let most = takes.max().unwrap_or(0);
        (questions.len() > 1 && self.connection.hold(held + most)).then_some(1)
    }
}
