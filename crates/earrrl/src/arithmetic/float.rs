//! Elementary functions of doubles: from the standard library, or from `libm` without it.

#[cfg(feature = "std")]
mod platform {
    #[inline]
    pub(crate) fn exp(x: f64) -> f64 {
        x.exp()
    }
    #[inline]
    pub(crate) fn exp_m1(x: f64) -> f64 {
        x.exp_m1()
    }
    #[inline]
    pub(crate) fn ln(x: f64) -> f64 {
        x.ln()
    }
    #[inline]
    pub(crate) fn ln_1p(x: f64) -> f64 {
        x.ln_1p()
    }
}

#[cfg(not(feature = "std"))]
mod platform {
    pub(crate) use libm::{exp, expm1 as exp_m1, log as ln, log1p as ln_1p};
}

pub(crate) use platform::{exp, exp_m1, ln, ln_1p};
