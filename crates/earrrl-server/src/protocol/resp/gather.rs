//! Gathers the questions of one client: they are parsed before the first of them is answered.
//!
//! If states are in memory, they are prefetched meanwhile, since waiting for memory takes longer than
//! deciding. If they are in Redis, all questions are sent at once.

use super::client::Client;
use super::codec::{DetachedRequest, Malformed};
use super::question::{Gathered, Questions};
use crate::service::rules::ActiveRules;

/// The most questions that are gathered. Their replies are short, so that they need no bound of
/// their own.
const MOST: usize = 32;

/// The input that follows the questions that were gathered.
pub(super) enum Then {
    /// Possibly more of them.
    More,
    /// Another command, which is carried out after them and before the next.
    Command(usize, DetachedRequest),
    /// There is no whole request left.
    Starved,
    /// The rest is not a valid request.
    Malformed(Malformed),
}

impl Client {
    /// Gathers the next questions of the input, and returns the kind of input that follows them.
    pub(super) fn gather<'a>(
        &mut self,
        input: &'a [u8],
        consumed: &mut usize,
        rules: &'a ActiveRules,
        questions: &mut Questions<'a>,
    ) -> Then {
        let Self { session, decoder, .. } = self;
        let in_memory = !session.server.service.engine().waits();
        while questions.len() < MOST {
            let start = *consumed;
            let request = match decoder.decode(&input[start..]) {
                Ok(Some(request)) => request,
                Ok(None) => return Then::Starved,
                Err(malformed) => return Then::Malformed(malformed),
            };
            *consumed += request.consumed();
            let Some(mut question) = session.question(request, rules) else {
                return Then::Command(start, request.keep());
            };
            if in_memory {
                question.prefetch(&session.server.service);
            }
            questions.push(Gathered { question, length: request.consumed() });
        }
        Then::More
    }
}
