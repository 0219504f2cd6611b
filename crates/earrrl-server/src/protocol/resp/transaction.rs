//! `MULTI`: commands that are kept until `EXEC`, and then carried out in order.
//!
//! Clients send their pipelines so by default. Others may be served between two of the commands:
//! each is decided by itself.

use super::codec::{Decoder, Request};
use super::refusal::Refusal;

/// Most commands.
const MAX_COMMANDS: usize = 512;
/// Most bytes of them all.
const MAX_LEN: usize = 64 * 1024;

/// The commands since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    bytes: Vec<u8>,
    commands: usize,
    /// One of them was refused, so none will be carried out.
    failed: bool,
}

impl Transaction {
    /// Keeps a command.
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

    /// Makes it one that `EXEC` refuses.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        self.bytes = Vec::new();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns the number of commands.
    pub(super) fn len(&self) -> usize {
        self.commands
    }

    /// Returns the number of bytes that the transaction keeps.
    pub(super) fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the command that begins at `start`, and the start of the next one.
    pub(super) fn next<'a>(
        &'a self,
        start: usize,
        decoder: &'a mut Decoder,
    ) -> Option<(Request<'a, 'a>, usize)> {
        let request = decoder.decode(self.bytes.get(start..)?).ok()??;
        Some((request, start + request.consumed()))
    }
}
