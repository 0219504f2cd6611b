//! Requests of one client that are decoded before the first of them is answered.
//!
//! Where states are in memory, they are on their way to the processor meanwhile: to wait for each
//! takes longer than to decide. Where they are elsewhere, all are asked about at once.

use super::codec::{Kept, Malformed};
use super::serve::Client;
use super::session::Session;
use crate::service::rules::RuleSet;

/// Most requests that are gathered. What a question is answered with is short, so that their answers
/// together are not much.
const MOST: usize = 32;

/// Questions, each with the place where it begins.
pub type Questions = Vec<(usize, Kept)>;

/// What follows the questions that were gathered.
pub(super) enum Then {
    /// Possibly more of them.
    More,
    /// A command, which is carried out after them and before the next.
    Command(usize, Kept),
    /// There is no whole request left.
    Starved,
    /// The rest is no request.
    Malformed(Malformed),
}

impl Client {
    /// The next questions of the input, and what follows them.
    pub(super) fn gather(
        &mut self,
        input: &[u8],
        consumed: &mut usize,
        rules: &RuleSet,
        questions: &mut Questions,
    ) -> Then {
        while questions.len() < MOST {
            let start = *consumed;
            let request = match self.decoder.decode(&input[start..]) {
                Ok(Some(request)) => request,
                Ok(None) => return Then::Starved,
                Err(malformed) => return Then::Malformed(malformed),
            };
            *consumed += request.consumed();
            let kept = request.keep();
            if !Session::overlaps(request) {
                return Then::Command(start, kept);
            }
            self.session.prefetch(request, rules);
            questions.push((start, kept));
        }
        Then::More
    }
}
