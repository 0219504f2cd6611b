//! Commands that ask for a decision, and change nothing but the state that it is about.

use earrrl::Mode;
use earrrl::table::KeyHash;

use super::codec::Kept;

/// A command that asks for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// `CL.THROTTLE`.
    Throttle,
    /// `EARRRL.CHECK`, `EARRRL.PEEK`, `EARRRL.CHARGE`.
    Ask(Mode),
    /// `EARRRL.ALLOW`.
    Allow,
}

impl Question {
    /// Returns the question of a command of this name, if it asks for a decision.
    #[inline]
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        let mut upper = [0; 13];
        let upper = upper.get_mut(..name.len())?;
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        match &*upper {
            b"CL.THROTTLE" => Some(Self::Throttle),
            b"EARRRL.CHECK" => Some(Self::Ask(Mode::Check)),
            b"EARRRL.ALLOW" => Some(Self::Allow),
            b"EARRRL.PEEK" => Some(Self::Ask(Mode::Peek)),
            b"EARRRL.CHARGE" => Some(Self::Ask(Mode::Charge)),
            _ => None,
        }
    }
}

/// A question of the input: where it begins, what it is, and the hash of its key where its state is
/// being fetched.
pub(super) type Questions = Vec<(usize, Kept, Question, Option<KeyHash>)>;
