//! Answers a client's questions over Redis: all of a pipeline are in flight together.
//!
//! They are sent over the engine's one connection in the order in which they arrived, so requests
//! about one key are decided in that order. Every other command waits for the questions before it,
//! and the questions after it wait for the command.

use futures_util::future::join_all;

use super::client::Client;
use super::question::Questions;

/// An upper estimate of the bytes that a question in flight takes, besides `COPIES` copies of the
/// request itself.
const TAKES: usize = 2048;
const COPIES: usize = 4;

impl Client {
    /// Answers the questions while the connection holds `held` bytes of input. Returns `false` if
    /// memory is short even for one question.
    pub(super) async fn answer_together(
        &mut self,
        held: usize,
        questions: &mut Questions<'_>,
        output: &mut Vec<u8>,
    ) -> bool {
        let Some(at_once) = self.in_flight(held + output.len(), questions) else {
            self.refuse_for_memory(output);
            return false;
        };
        for together in questions.chunks(at_once) {
            let answers = together.iter().map(async |gathered| {
                let mut out = Vec::new();
                self.session.answer(&gathered.question, &mut out).await;
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
    fn in_flight(&self, held: usize, questions: &Questions<'_>) -> Option<usize> {
        let takes = questions.iter().map(|gathered| TAKES + COPIES * gathered.length);
        if self.connection.hold(held + takes.clone().sum::<usize>()) {
            return Some(questions.len().max(1));
        }
        let most = takes.max().unwrap_or(0);
        (questions.len() > 1 && self.connection.hold(held + most)).then_some(1)
    }
}
