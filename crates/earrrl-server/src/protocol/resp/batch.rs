//! Answers the requests that were read from a client: all of them before anything is written.
//!
//! Questions (requests for a decision) are gathered first, up to a few at once, and then answered. If the clients'
//! states are in memory, each is prefetched when its question is parsed, since waiting for memory takes longer than
//! deciding. If they are in Redis, all gathered questions are in flight together, over one connection and in the order
//! in which they arrived, so requests for the same key are decided in that order. Every other command waits for the
//! questions before it, and the questions after it wait for the command.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use super::codec::{Malformed, Request, decode};
use super::command::AfterCommand;
use super::question::{Gathered, Questions, recycle};
use super::reply::Writer;
use super::serve::{Buffers, Client, OUTPUT_HIGH_WATER};
use crate::service::rules::ActiveRules;

/// An upper estimate of the memory that a question in flight takes, in bytes, besides `COPIES`
/// copies of its request.
const TAKES: usize = 2048;
const COPIES: usize = 4;
/// The largest number of questions that are gathered at once. Their replies are short, so the
/// output needs no separate bound.
const MOST: usize = 32;

/// The kind of input that follows the gathered questions.
enum Then<'a> {
    /// Unexamined input, since the largest number of questions was gathered.
    More,
    /// A command that is not a question. It is executed after the gathered questions and before any
    /// further input.
    Command(Request<'a>),
    /// No complete request.
    Starved,
    /// Input that is not a valid request.
    Malformed(Malformed),
}

/// The reason why the server stopped answering a batch of requests.
enum BatchEnd {
    /// The input has no further complete request.
    Starved,
    /// The connection is to be closed after the replies are written.
    Closing,
    /// A command has changed the rules.
    Renewed,
    /// The output is full, so its replies must be written before more requests are answered.
    Full,
}

/// # The batch
impl Client {
    /// Answers every complete request of the input. Returns the number of bytes consumed, or `None`
    /// if the connection is to be closed after these replies.
    pub(super) async fn answer(
        &mut self,
        mut buffers: Buffers,
    ) -> io::Result<(Buffers, Option<usize>)> {
        let waits = self.session.server.service.engine().waits();
        let mut consumed = 0;
        loop {
            // No buffers of the thread are held while the client waits for Redis.
            if waits {
                buffers = buffers.apart();
            }
            let Buffers {
                input,
                questions,
                output,
            } = &mut buffers;
            match self
                .answer_batch(input, &mut consumed, questions, output)
                .await
            {
                BatchEnd::Starved => return Ok((buffers, Some(consumed))),
                BatchEnd::Closing => return Ok((buffers, None)),
                BatchEnd::Renewed => {}
                BatchEnd::Full => buffers = self.drain(buffers, &mut consumed).await?,
            }
        }
    }

    async fn answer_batch(
        &mut self,
        input: &[u8],
        consumed: &mut usize,
        questions: &mut Questions<'static>,
        output: &mut Vec<u8>,
    ) -> BatchEnd {
        self.session.review();
        let server = Arc::clone(&self.session.server);
        let rules = server.service.rules();
        let started = Instant::now();
        let mut batch = recycle(std::mem::take(questions));
        let (ended, requests) = self
            .answer_with(&rules, input, consumed, &mut batch, output)
            .await;
        *questions = recycle(batch);
        server.service.metrics.resp_requests.add(requests);
        server.service.metrics.resp_batch.record(started.elapsed());
        ended
    }

    /// Answers requests under `rules`, until the output is full or the input has no complete
    /// request. Also returns the number of requests.
    async fn answer_with<'a>(
        &mut self,
        rules: &'a ActiveRules,
        input: &'a [u8],
        consumed: &mut usize,
        questions: &mut Questions<'a>,
        output: &mut Vec<u8>,
    ) -> (BatchEnd, u64) {
        let waits = self.session.server.service.engine().waits();
        let mut requests = 0;
        while output.len() < OUTPUT_HIGH_WATER {
            let then = self.gather(input, consumed, rules, questions);
            requests += questions.len() as u64;
            if !waits {
                for gathered in questions.drain(..) {
                    self.session.answer(&gathered.question, output).await;
                }
            } else if !Box::pin(self.answer_together(input.len(), questions, output)).await {
                return (BatchEnd::Closing, requests);
            }
            match then {
                Then::More => {}
                Then::Command(request) => {
                    requests += 1;
                    match self.session.carry_out(&request, rules, output).await {
                        AfterCommand::Go => {}
                        AfterCommand::Renew => return (BatchEnd::Renewed, requests),
                        AfterCommand::Close => return (BatchEnd::Closing, requests),
                    }
                }
                Then::Starved => return (BatchEnd::Starved, requests),
                Then::Malformed(malformed) => {
                    self.refuse(malformed, output);
                    return (BatchEnd::Closing, requests);
                }
            }
        }
        (BatchEnd::Full, requests)
    }

    fn refuse(&self, malformed: Malformed, output: &mut Vec<u8>) {
        self.session.server.service.metrics.malformed.increment();
        let mut reply = Writer::new(output, self.session.version);
        reply.error(&format!("Protocol error: {malformed}"));
    }
}

/// # Questions
impl Client {
    /// Appends the next questions of the input to `questions`, and returns the kind of input that
    /// follows them.
    fn gather<'a>(
        &mut self,
        input: &'a [u8],
        consumed: &mut usize,
        rules: &'a ActiveRules,
        questions: &mut Questions<'a>,
    ) -> Then<'a> {
        let session = &mut self.session;
        let in_memory = !session.server.service.engine().waits();
        while questions.len() < MOST {
            let request = match decode(&input[*consumed..]) {
                Ok(Some(request)) => request,
                Ok(None) => return Then::Starved,
                Err(malformed) => return Then::Malformed(malformed),
            };
            let length = request.bytes.len();
            *consumed += length;
            let Some(mut question) = session.question(&request, rules) else {
                return Then::Command(request);
            };
            if in_memory {
                question.prefetch(&session.server.service);
            }
            questions.push(Gathered { question, length });
        }
        Then::More
    }

    /// Answers the questions and empties the list. `held` is the number of bytes of input that the
    /// connection holds meanwhile. Returns false if memory is short even for one question.
    async fn answer_together(
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
