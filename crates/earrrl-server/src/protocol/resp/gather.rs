//! Gathers the questions (requests for a decision) of one client: several are parsed before the
//! first of them is answered.
//!
//! If the clients' states are in memory, each is prefetched when its question is parsed, since
//! waiting for memory takes longer than deciding. If the states are in Redis, all gathered
//! questions are sent at once.

use super::client::Client;
use super::codec::{DetachedRequest, Malformed};
use super::question::{Gathered, Questions};
use crate::service::rules::ActiveRules;

/// The largest number of questions that are gathered at once. Their replies are short, so the
/// output needs no separate bound.
const MOST: usize = 32;

/// The kind of input that follows the gathered questions.
pub(super) enum Then {
    /// Unexamined input, since the largest number of questions was gathered.
    More,
    /// A command that is not a question, and the offset at which it starts. It is executed after
    /// the gathered questions and before any further input.
    Command(usize, DetachedRequest),
    /// No complete request.
    Starved,
    /// Input that is not a valid request.
    Malformed(Malformed),
}

impl Client {
    /// Appends the next questions of the input to `questions`, and returns the kind of input that
    /// follows them.
    pub(super) fn gather<'a>(
        &mut self,
        input: &'a [u8],
        consumed: &mut usize,
        rules: &'a ActiveRules,
        questions: &mut Questions<'a>,
    ) -> Then {
        let Self {
            session, decoder, ..
        } = self;
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
            questions.push(Gathered {
                question,
                length: request.consumed(),
            });
        }
        Then::More
    }
}
