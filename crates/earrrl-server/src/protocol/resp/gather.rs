//! Requests of one client that are decoded before the first of them is answered.
//!
//! Where states are in memory, they are on their way to the processor meanwhile: to wait for each
//! takes longer than to decide. Where they are elsewhere, all are asked about at once.

use super::client::Client;
use super::codec::{Kept, Malformed};
use super::decide;
use super::question::Questions;
use crate::service::rules::ActiveRules;

/// Most requests that are gathered. What a question is answered with is short, so that their answers
/// together are not much.
const MOST: usize = 32;

/// The input that follows the questions that were gathered.
pub(super) enum Then {
    /// Possibly more of them.
    More,
    /// Another command, which is carried out after them and before the next.
    Command(usize, Kept),
    /// There is no whole request left.
    Starved,
    /// The rest is not a valid request.
    Malformed(Malformed),
}

impl Client {
    /// Gathers the next questions of the input, and returns the kind of input that follows them.
    pub(super) fn gather(
        &mut self,
        input: &[u8],
        consumed: &mut usize,
        rules: &ActiveRules,
        questions: &mut Questions,
    ) -> Then {
        let fetches = !self.session.server.service.engine().waits();
        while questions.len() < MOST {
            let start = *consumed;
            let request = match self.decoder.decode(&input[start..]) {
                Ok(Some(request)) => request,
                Ok(None) => return Then::Starved,
                Err(malformed) => return Then::Malformed(malformed),
            };
            *consumed += request.consumed();
            let kept = request.keep();
            let Some(question) = self.session.question(request) else {
                return Then::Command(start, kept);
            };
            let hash = match fetches {
                true => decide::prefetch(&self.session, question, request, rules),
                false => None,
            };
            questions.push((start, kept, question, hash));
        }
        Then::More
    }
}
