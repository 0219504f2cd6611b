//! Transactions: commands that are queued after `MULTI`, and executed in order at `EXEC`.
//!
//! Client libraries wrap pipelines in a transaction by default. A transaction is not atomic:
//! commands of other clients may be executed between its commands.

use super::codec::{Decoder, Request};
use super::refusal::Refusal;

/// The largest number of commands in a transaction.
const MAX_COMMANDS: usize = 512;
/// The largest total length of a transaction's commands, in bytes.
const MAX_LEN: usize = 64 * 1024;

/// The commands that a client has queued since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    bytes: Vec<u8>,
    commands: usize,
    /// True if a command was refused when it was queued, so that `EXEC` executes none.
    failed: bool,
}

impl Transaction {
    /// Queues a command. If the transaction is full, marks it as failed and returns an error.
    pub(super) fn keep(&mut self, request: Request<'_, '_>) -> Result<(), Refusal> {
        if self.commands >= MAX_COMMANDS || self.bytes.len() + request.consumed() > MAX_LEN {
            self.fail();
            let why = format!("MULTI: at most {MAX_COMMANDS} commands of {MAX_LEN} bytes in all");
            return Err(Refusal::Error(why));
        }
        self.commands += 1;
        self.bytes.extend_from_slice(request.bytes());
        Ok(())
    }

    /// Marks the transaction as failed, so that `EXEC` refuses it.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        self.bytes = Vec::new();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns the number of queued commands.
    pub(super) fn len(&self) -> usize {
        self.commands
    }

    /// Returns the number of bytes that are allocated for the queued commands.
    pub(super) fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the command that begins at the offset `start`, and the offset of the next one.
    pub(super) fn next<'a>(
        &'a self,
        start: usize,
        decoder: &'a mut Decoder,
    ) -> Option<(Request<'a, 'a>, usize)> {
        let request = decoder.decode(self.bytes.get(start..)?).ok()??;
        Some((request, start + request.consumed()))
    }
}
