//! The schedule of retries after a failure, whose cause may be temporary, such as a lack of file
//! descriptors.

/// The longest pause between two retries, in seconds.
const LONGEST: u32 = 8;

/// Schedules retries after a failure, at pauses of 1, 2, 4 and then 8 seconds.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// The length of the current pause in seconds; zero if the last attempt succeeded.
    pause: u32,
    /// The number of seconds that remain of the current pause.
    left: u32,
}

impl Again {
    /// Records the result of an attempt, and starts the pause before the next one.
    pub(super) fn attempted(&mut self, succeeded: bool) {
        self.pause = if succeeded {
            0
        } else {
            (2 * self.pause).clamp(1, LONGEST)
        };
        self.left = self.pause;
    }

    /// Records that a second has passed, and returns true if the pause is over and a retry is due.
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
