//! The order in which tables evict the clients of a limit.

use super::table::{Order, Word};
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
