//! Answers the requests that were read from a client. Questions (requests for a decision) are
//! gathered first, and then answered one after the other, or all at once if the engine waits for
//! Redis.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::buffers::{Buffers, OUTPUT_HIGH_WATER};
use super::client::Client;
use super::codec::Malformed;
use super::dispatch::AfterCommand;
use super::gather::Then;
use super::question::{Questions, recycle};
use super::reply::Writer;
use crate::service::rules::ActiveRules;

/// The reason why the server stopped answering a batch of requests.
enum BatchEnd {
    /// The input has no further complete request.
    Starved,
    /// The connection is to be closed after the replies are written.
    Closing,
    /// The output is full, so its replies must be written before more requests are answered.
    Full,
}

impl Client {
    /// Answers every complete request of the input. Returns the number of bytes consumed, or `None`
    /// if the connection is to be closed after these replies.
    pub(super) async fn answer(
        &mut self,
        mut buffers: Buffers,
    ) -> io::Result<(Buffers, Option<usize>)> {
        if self.session.server.service.engine().waits() {
            // The future is boxed, so that it takes no memory in connections whose engine never
            // waits.
            return Box::pin(self.answer_apart(buffers)).await;
        }
        let mut consumed = 0;
        loop {
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
                BatchEnd::Full => buffers = self.drain(buffers, &mut consumed).await?,
            }
        }
    }

    /// Does the same as `answer` on copies of the input, so that no buffers of the thread are held
    /// while it waits for Redis.
    async fn answer_apart(&mut self, buffers: Buffers) -> io::Result<(Buffers, Option<usize>)> {
        let input: Box<[u8]> = buffers.input[..].into();
        buffers.give_back();
        let mut output = Vec::new();
        let mut questions = Questions::new();
        let mut consumed = 0;
        let going_on = loop {
            match self
                .answer_batch(&input, &mut consumed, &mut questions, &mut output)
                .await
            {
                BatchEnd::Starved => break true,
                BatchEnd::Closing => break false,
                BatchEnd::Full => {
                    self.hold(input.len() + output.len())?;
                    self.write_patiently(&output).await?;
                    output.clear();
                }
            }
        };
        let mut buffers = Buffers::take();
        buffers.input.extend_from_slice(&input);
        buffers.output.append(&mut output);
        Ok((buffers, going_on.then_some(consumed)))
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
                Then::Command(start, kept) => {
                    requests += 1;
                    let request = kept.within(&input[start..]);
                    if self.session.carry_out(request, rules, output).await == AfterCommand::Close {
                        return (BatchEnd::Closing, requests);
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
        let mut reply = Writer::new(output, self.session.version());
        reply.error(&format!("Protocol error: {malformed}"));
    }
}
