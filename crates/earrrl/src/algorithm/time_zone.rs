//! Time zones as lists of offsets from UTC, from the IANA database that is compiled in.

#[cfg(feature = "time-zones")]
use alloc::{boxed::Box, format, vec::Vec};

use crate::error::RuleError;
use crate::grammar::Word;

/// The most seconds by which a local time differs from UTC, and more.
const FARTHEST: i64 = 26 * 3600;

/// A time zone. Its name and its offsets are kept for the rest of the process, once for each zone.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeZone {
    name: &'static str,
    /// The seconds since the epoch from which each offset applies, the earliest first.
    offsets: &'static [(i64, i64)],
}

impl PartialEq for TimeZone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl TimeZone {
    pub(super) const UTC: Self = Self {
        name: "UTC",
        offsets: &[(i64::MIN, 0)],
    };

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the seconds by which local time is ahead of UTC.
    pub(super) fn offset_at(&self, second: i64) -> i64 {
        let next = self.offsets.partition_point(|(from, _)| *from <= second);
        self.offsets[next.saturating_sub(1)].1
    }

    /// Returns the first second at which a clock in this zone shows `local` or later.
    pub(super) fn first_instant(&self, local: i64) -> i64 {
        let next = |(from, _): &(i64, i64)| *from <= local - FARTHEST;
        let first = self.offsets.partition_point(next).saturating_sub(1);
        let reached = |place: usize| {
            let (from, offset) = self.offsets[place];
            let shows = (local - offset).max(from);
            let next = self.offsets.get(place + 1);
            next.is_none_or(|(end, _)| shows < *end).then_some(shows)
        };
        (first..self.offsets.len())
            .find_map(reached)
            .unwrap_or(local)
    }
}

#[cfg(not(feature = "time-zones"))]
impl TimeZone {
    /// Returns UTC. This build knows no other time zone.
    pub(super) fn read(word: Word<'_>) -> Result<Self, RuleError> {
        match word.text {
            "UTC" => Ok(Self::UTC),
            _ => Err(word.expected("UTC; other time zones need the feature `time-zones`")),
        }
    }
}

#[cfg(feature = "time-zones")]
impl TimeZone {
    /// Parses an IANA name such as `Europe/Berlin`.
    pub(super) fn read(word: Word<'_>) -> Result<Self, RuleError> {
        use jiff::tz::TimeZoneDatabase;
        /// The zones that rules have named. The database bounds their number.
        static KNOWN: std::sync::Mutex<Vec<TimeZone>> = std::sync::Mutex::new(Vec::new());

        let database = TimeZoneDatabase::bundled();
        let Ok(zone) = database.get(word.text) else {
            let names: Vec<_> = database.available().map(|name| format!("{name}")).collect();
            let meant = crate::grammar::did_you_mean(word.text, names.iter().map(|name| &**name));
            let what = format!("an IANA time zone such as Europe/Berlin or UTC{meant}");
            return Err(word.expected(&what));
        };
        let name = zone.iana_name().unwrap_or("UTC");
        let mut known = crate::lock::lock(&KNOWN);
        if let Some(same) = known.iter().find(|known| known.name == name) {
            return Ok(*same);
        }
        let read = Self {
            name: Box::leak(name.into()),
            offsets: Box::leak(offsets(&zone).into()),
        };
        known.push(read);
        Ok(read)
    }
}

/// Returns the offsets of a zone from the epoch to the last instant that a clock can show.
#[cfg(feature = "time-zones")]
fn offsets(zone: &jiff::tz::TimeZone) -> Vec<(i64, i64)> {
    let seconds = |offset: jiff::tz::Offset| i64::from(offset.seconds());
    let epoch = jiff::Timestamp::UNIX_EPOCH;
    let mut offsets = Vec::from([(i64::MIN, seconds(zone.to_offset(epoch)))]);
    let changes = zone
        .following(epoch)
        .map(|change| (change.timestamp().as_second(), seconds(change.offset())))
        .take_while(|(from, _)| *from <= (u64::MAX / 1_000_000_000) as i64);
    offsets.extend(changes);
    offsets.dedup_by_key(|(_, offset)| *offset);
    offsets
}
