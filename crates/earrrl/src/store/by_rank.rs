//! Tables of clients under a limit: the order in which they evict clients, and a changed limit.

use super::table::{Order, Table, Word};
use crate::algorithm::{Algorithm, Limit};
use crate::clock::Nanos;

/// The order in which a table evicts the clients of an algorithm at an instant.
pub(crate) struct ByRank<'a, A>(pub(crate) &'a A, pub(crate) Nanos);

impl<A: Algorithm> Order for ByRank<'_, A> {
    #[inline(always)]
    fn idle(&self) -> Word {
        self.0.idle(self.1)
    }

    #[inline(always)]
    fn rank(&self, word: Word) -> Word {
        self.0.rank(word, self.1)
    }
}

impl Order for ByRank<'_, Limit> {
    fn idle(&self) -> Word {
        self.0.idle(self.1)
    }

    fn rank(&self, word: Word) -> Word {
        self.0.rank(word, self.1)
    }
}

/// Applies a changed limit to the states of a table, which mean the same under both limits.
///
/// Requests may be decided meanwhile: a state is replaced by compare-and-swap, and carrying it over twice
/// is the same as once.
pub(crate) fn carry(table: &Table, old: &Limit, new: &Limit, now: Nanos) {
    if new.shortens_waits_of(old) {
        table.convert(|word| {
            let state = old.state_of(word)?;
            new.word(new.carried(old, state, now)?)
        });
    }
}
