//! For the sister crates, which know every algorithm: one that they forget does not compile.

use super::{
    Exponential, FixedWindow, Limit, RecentAverage, SlidingCounter, SlidingLog, SlidingWindow,
    TokenBucket,
};

macro_rules! visitor {
    ($($algorithm:ident $visit:ident),* $(,)?) => {
        /// What is done with the parameters of a limit, algorithm by algorithm.
        #[doc(hidden)]
        pub trait Visitor<'a> {
            /// What comes of it.
            type Out;
            $(
                #[allow(missing_docs)]
                fn $visit(self, limit: &'a $algorithm) -> Self::Out;
            )*
        }

        impl Limit {
            /// Shows the visitor this limit's parameters.
            #[doc(hidden)]
            pub fn visit<'a, V: Visitor<'a>>(&'a self, visitor: V) -> V::Out {
                match self {
                    $(Self::$algorithm(limit) => visitor.$visit(limit),)*
                }
            }
        }
    };
}

visitor! {
    RecentAverage recent_average,
    Exponential exponential,
    TokenBucket token_bucket,
    FixedWindow fixed_window,
    SlidingLog sliding_log,
    SlidingWindow sliding_window,
    SlidingCounter sliding_counter,
}
