//! The macro that generates [`Limit`](super::Limit), [`State`](super::State) and the dispatch over
//! all algorithms from one list.

/// Generates the types from a list of `Type module`, one entry for each algorithm.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $Algorithm:ident $module:ident),* $(,)?) => {
        $(pub use $module::$Algorithm;)*

        /// A limit: one of the algorithms with its parameters.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Limit {
            $($(#[$doc])* $Algorithm($Algorithm),)*
        }

        /// The state of one client under one limit.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum State {
            $($(#[$doc])* $Algorithm(<$Algorithm as Algorithm>::State),)*
        }

        $(
            impl From<$Algorithm> for Limit {
                fn from(limit: $Algorithm) -> Self {
                    Self::$Algorithm(limit)
                }
            }

            impl list::Stored<State> for $Algorithm {
                fn wrap(&self, state: Option<Self::State>) -> Option<State> {
                    state.map(State::$Algorithm)
                }

                fn open(&self, state: Option<State>) -> Option<Self::State> {
                    match state {
                        Some(State::$Algorithm(state)) => Some(state),
                        _ => None,
                    }
                }
            }
        )*

        /// Evaluates `$do` with `$limit` bound to the limit's parameters, for whichever algorithm
        /// it is.
        macro_rules! each {
            ($this:expr, $limit:ident => $do:expr) => {
                match $this {
                    $(Limit::$Algorithm($limit) => $do,)*
                }
            };
        }
        pub(crate) use each;

        impl Limit {
            /// The names of every algorithm; see [`Algorithm::NAMES`].
            pub(crate) const NAMES: &'static [&'static [&'static str]] =
                &[$($Algorithm::NAMES),*];

            /// Parses the parameters of the algorithm called `name`; returns `None` if no algorithm
            /// has that name.
            pub(crate) fn read(
                name: &str,
                words: &mut RuleWords<'_>,
            ) -> Option<Result<Self, RuleError>> {
                $(
                    if $Algorithm::NAMES.contains(&name) {
                        return Some($Algorithm::read(name, words).map(Self::$Algorithm));
                    }
                )*
                None
            }

            /// Returns the name of the algorithm, and the parameters that give its states their meaning; see
            /// [`Algorithm::meaning`]. States are kept under their meaning: a rule whose limit gets another
            /// one begins afresh, and every other change of a limit applies to the stored states in place.
            pub fn meaning(&self) -> (&'static str, [u64; 2]) {
                match self {
                    $(Self::$Algorithm(limit) => ($Algorithm::NAMES[0], limit.meaning()),)*
                }
            }

            /// Calls the visitor's method for this limit's algorithm with its parameters.
            #[doc(hidden)]
            pub fn visit<'a, V: Visitor<'a>>(&'a self, visitor: V) -> V::Out {
                match self {
                    $(Self::$Algorithm(limit) => visitor.$module(limit),)*
                }
            }
        }

        impl State {
            /// Returns the bytes that the state occupies, including the heap.
            pub fn bytes(&self) -> usize {
                size_of::<Self>() + match self {
                    $(Self::$Algorithm(state) => state.heap_bytes(),)*
                }
            }
        }

        /// An operation that another EARRRL crate defines for each algorithm. The compiler rejects
        /// an implementation that lacks an algorithm.
        #[doc(hidden)]
        pub trait Visitor<'a> {
            /// The type of the operation's result.
            type Out;
            $(
                #[allow(missing_docs)]
                fn $module(self, limit: &'a $Algorithm) -> Self::Out;
            )*
        }
    };
}

pub(super) use algorithms;

/// Evaluates `$do` with `$limit` bound to the parameters of the limit `$this` if its states are words of the
/// table, and `$else` otherwise.
#[cfg(feature = "std")]
macro_rules! in_words {
    ($this:expr, $limit:ident => $do:expr, else $else:expr) => {
        match $this {
            Limit::TokenBucket($limit) => $do,
            Limit::RecentAverage($limit) => $do,
            Limit::FixedWindow($limit) => $do,
            Limit::SlidingCounter($limit) => $do,
            _ => $else,
        }
    };
}
#[cfg(feature = "std")]
pub(crate) use in_words;

use super::contract::Algorithm;

/// An algorithm whose states can be stored in `S`, the enum of all algorithms' states.
pub(super) trait Stored<S>: Algorithm {
    /// Wraps this algorithm's state in the enum.
    fn wrap(&self, state: Option<Self::State>) -> Option<S>;

    /// Returns the state of this algorithm; `None` for a state of another one.
    fn open(&self, state: Option<S>) -> Option<Self::State>;
}
