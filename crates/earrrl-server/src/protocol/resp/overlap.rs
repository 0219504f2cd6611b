//! Answers a client's questions (requests for a decision) if the engine stores state in Redis: all
//! questions of a pipeline are in flight together.
//!
//! The engine sends the questions over one connection to Redis in the order in which they arrived,
//! so requests for the same key are decided in that order. Every other command waits for the
//! questions before it, and the questions after it wait for the command.

use futures_util::future::join_all;

use super::client::Client;
use super::question::Questions;

/// An upper estimate of the memory that a question in flight takes, in bytes, besides `COPIES`
/// copies of its request.
const TAKES: usize = 2048;
const COPIES: usize = 4;

impl Client {
    /// Answers the questions and empties the list. `held` is the number of bytes of input that the
    /// connection holds meanwhile. Returns false if memory is short even for one question.
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

    /// Returns the number of questions that may be in flight together: all of them if memory
    /// suffices, otherwise one, or `None` if memory is short even for one.
    fn in_flight(&self, held: usize, questions: &Questions<'_>) -> Option<usize> {
        let takes = questions
            .iter()
            .map(|gathered| TAKES + COPIES * gathered.length);
        if self.connection.hold(held + takes.clone().sum::<usize>()) {
            return Some(questions.len().max(1));
        }
        let most = takes.max().unwrap_or(0);
        (questions.len() > 1 && self.connection.hold(held + most)).then_some(1)
    }
}
