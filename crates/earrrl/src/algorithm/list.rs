//! The macro that makes [`Limit`](super::Limit), [`State`](super::State) and the only dispatch over algorithms
//! from one list.

/// From `Type module` for each algorithm.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $Algorithm:ident $module:ident),* $(,)?) => {
        $(pub use $module::$Algorithm;)*

        /// The types of the list, for the crate's root.
        pub(crate) mod types {
            pub use super::{$($Algorithm),*};
        }

        /// One of the algorithms with its parameters.
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
                fn wrap(state: Self::State) -> State {
                    State::$Algorithm(state)
                }

                fn open(state: State) -> Option<Self::State> {
                    match state {
                        State::$Algorithm(state) => Some(state),
                        _ => None,
                    }
                }
            }
        )*

        /// `$do` with `$limit` bound to the parameters of a limit, whatever its algorithm.
        macro_rules! each {
            ($this:expr, $limit:ident => $do:expr) => {
                match $this {
                    $(Limit::$Algorithm($limit) => $do,)*
                }
            };
        }
        pub(crate) use each;

        impl Limit {
            /// The usual names of all algorithms.
            pub(crate) const NAMES: &'static [&'static [&'static str]] =
                &[$($Algorithm::NAMES),*];

            /// Rules of every algorithm; see [`Algorithm::EXAMPLES`].
            #[cfg(feature = "testing")]
            pub(crate) const EXAMPLES: &'static [&'static [&'static str]] =
                &[$($Algorithm::EXAMPLES),*];

            /// Reads what follows a name; `None` where no algorithm has it.
            pub(crate) fn read(
                name: &str,
                words: &mut Words<'_>,
            ) -> Option<Result<Self, RuleError>> {
                $(
                    if $Algorithm::NAMES.contains(&name) {
                        return Some($Algorithm::read(name, words).map(Self::$Algorithm));
                    }
                )*
                None
            }

            /// Returns the state under this limit of a client that had `state` under `old`: its history, with
            /// the present rate or balance kept where half-life, period, refill or capacity change. None where
            /// the algorithm is another.
            pub fn convert(&self, old: &Self, state: State, now: Nanos) -> Option<State> {
                match (self, old, state) {
                    $(
                        (Self::$Algorithm(new), Self::$Algorithm(old), State::$Algorithm(state)) => {
                            let kept = new.keeps_states_of(old);
                            let state =
                                if kept { Some(state) } else { new.convert(old, state, now) };
                            state.map(State::$Algorithm)
                        }
                    )*
                    _ => None,
                }
            }

            /// Returns true if no state needs conversion; see [`Algorithm::keeps_states_of`].
            #[cfg(feature = "std")]
            pub(crate) fn keeps_states_of(&self, old: &Self) -> bool {
                match (self, old) {
                    $((Self::$Algorithm(new), Self::$Algorithm(old)) => new.keeps_states_of(old),)*
                    _ => false,
                }
            }

            /// Returns true if both have the same algorithm, with whatever parameters.
            #[cfg(feature = "std")]
            pub(crate) fn is_of_the_algorithm_of(&self, other: &Self) -> bool {
                core::mem::discriminant(self) == core::mem::discriminant(other)
            }

            /// Shows the visitor this limit's parameters.
            #[doc(hidden)]
            pub fn visit<'a, V: Visitor<'a>>(&'a self, visitor: V) -> V::Out {
                match self {
                    $(Self::$Algorithm(limit) => visitor.$module(limit),)*
                }
            }
        }

        impl State {
            /// Returns the state as a word of the table, where it is one time.
            #[cfg(feature = "std")]
            pub(crate) fn word(&self) -> Option<i128> {
                match self {
                    $(Self::$Algorithm(state) => state.word(),)*
                }
            }

            /// Bytes that the state takes, with what it has on the heap.
            pub fn bytes(&self) -> usize {
                size_of::<Self>() + match self {
                    $(Self::$Algorithm(state) => state.heap_bytes(),)*
                }
            }
        }

        /// An operation of a sister crate on each algorithm. An algorithm that it forgets is a compile error.
        #[doc(hidden)]
        pub trait Visitor<'a> {
            /// The result of the operation.
            type Out;
            $(
                #[allow(missing_docs)]
                fn $module(self, limit: &'a $Algorithm) -> Self::Out;
            )*
        }
    };
}

pub(super) use algorithms;

use super::contract::Algorithm;

/// An algorithm whose state has its place in `S`, the states of all algorithms.
pub(super) trait Stored<S>: Algorithm {
    /// Returns the state as any state.
    fn wrap(state: Self::State) -> S;

    /// Returns the state of this algorithm; `None` for a state of another one.
    fn open(state: S) -> Option<Self::State>;
}
