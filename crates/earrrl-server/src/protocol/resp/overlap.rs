//! Pipelines to an engine that is waited for: as many requests of a client as may be are asked
//! about together, and answered in order.
//!
//! They are sent in order, too, over the engine's one connection, so requests about one key are
//! decided in the order in which they came. Only checks, peeks and `CL.THROTTLE` overlap; every other
//! command waits for those before it, and those after it wait for it.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use super::buffers::{Buffers, OUTPUT_HIGH_WATER};
use super::codec::Kept;
use super::gather::{Questions, Then};
use super::reply::Writer;
use super::serve::Client;
use super::session::{Next, Session};
use crate::service::rules::RuleSet;

/// What one takes while it is under way, in bytes, generously, and how often its own are copied.
const TAKES: usize = 2048;
const COPIES: usize = 4;

impl Client {
    /// As [`Client::answer`], without holding the thread's buffers while it waits.
    pub(super) async fn answer_together(
        &mut self,
        buffers: Buffers,
    ) -> io::Result<(Buffers, Option<usize>)> {
        let input: Box<[u8]> = buffers.input[..].into();
        buffers.give_back();
        let (mut output, mut consumed) = (Vec::new(), 0);
        let going_on = self.answer_rounds(&input, &mut output, &mut consumed).await?;
        let mut buffers = Buffers::take();
        buffers.input.extend_from_slice(&input);
        buffers.output.append(&mut output);
        Ok((buffers, going_on.then_some(consumed)))
    }

    /// `false` when the connection is to be closed after the answers given.
    async fn answer_rounds(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
        consumed: &mut usize,
    ) -> io::Result<bool> {
        loop {
            let (started, server) = (Instant::now(), Arc::clone(&self.session.server));
            let rules = server.service.rules();
            let mut questions = Questions::new();
            let then = self.gather(input, consumed, &rules, &mut questions);
            let Some(at_once) = self.room(input.len() + output.len(), &questions) else {
                Writer::new(output, self.session.version()).error("server overloaded");
                return Ok(false);
            };
            for together in questions.chunks(at_once) {
                answer_questions(&self.session, together, input, &rules, output).await;
            }
            let metrics = &server.service.metrics;
            metrics.resp_requests.add(questions.len() as u64);
            metrics.resp_batch.record(started.elapsed());
            match then {
                Then::More => {}
                Then::Command(start, kept) => {
                    metrics.resp_requests.increment();
                    let request = kept.within(&input[start..]);
                    if self.session.answer(request, &rules, output).await == Next::Close {
                        return Ok(false);
                    }
                }
                Then::Starved => return Ok(true),
                Then::Malformed(malformed) => {
                    self.refuse(malformed, output);
                    return Ok(false);
                }
            }
            if output.len() >= OUTPUT_HIGH_WATER {
                self.write_patiently(output).await?;
                output.clear();
            }
        }
    }

    /// How many of the requests may be under way together: one at least, or `None` where memory is
    /// short even for that.
    fn room(&mut self, held: usize, questions: &[(usize, Kept)]) -> Option<usize> {
        let takes = questions.iter().map(|(_, kept)| TAKES + COPIES * kept.consumed());
        if self.connection.hold(held + takes.clone().sum::<usize>()) {
            return Some(questions.len().max(1));
        }
        let most = takes.max().unwrap_or(0);
        (questions.len() > 1 && self.connection.hold(held + most)).then_some(1)
    }
}

async fn answer_questions(
    session: &Session,
    questions: &[(usize, Kept)],
    input: &[u8],
    rules: &RuleSet,
    output: &mut Vec<u8>,
) {
    let answers = questions.iter().map(async |(start, kept)| {
        let mut out = Vec::new();
        session.question(kept.within(&input[*start..]), rules, &mut out).await;
        out
    });
    for answer in join_all(answers).await {
        output.extend_from_slice(&answer);
    }
}
