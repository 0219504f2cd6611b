//! When what has failed is tried again: the reason may be a passing one, as want of descriptors.

/// Longest pause between two attempts, in seconds.
const LONGEST: u32 = 8;

/// Attempts after a failure, at pauses of 1, 2, 4 and then 8 seconds.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// The present pause; zero where nothing has failed.
    pause: u32,
    /// What is left of it.
    left: u32,
}

impl Again {
    /// There was an attempt.
    pub(super) fn attempted(&mut self, succeeded: bool) {
        self.pause = if succeeded { 0 } else { (2 * self.pause).clamp(1, LONGEST) };
        self.left = self.pause;
    }

    /// A second has passed. Whether there is to be another attempt now.
    pub(super) fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.pause > 0 && self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_it_succeeds() {
        let mut again = Again::default();
        let due = |again: &mut Again| (1..=20).find(|_| again.is_due());
        assert_eq!(due(&mut again), None);
        for pause in [1, 2, 4, 8, 8] {
            again.attempted(false);
            assert_eq!(due(&mut again), Some(pause));
        }
        again.attempted(true);
        assert_eq!(due(&mut again), None);
    }
}
