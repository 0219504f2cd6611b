//! State files that are locked and checked, and their memory.

use std::format;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, ftruncate};
use rustix::io::Errno;

use super::error::StateError;
use super::folder::{Folder, Stem};
use super::header::{FIXED, FileHeader, HeaderFault};
use super::holders::holders;
use super::live::{Live, Present, WORDS};
use super::predecessor::Predecessor;
use super::rule_text::{self, RECORDS_AT};
use super::state_file::{FileSpec, KeyAndClock, Opened, StateFile};
use crate::algorithm::Limit;
use crate::clock::{Anchor, Nanos};
use crate::rule::Rule;
use crate::store::table::mapping::Mapping;
use crate::store::table::region::{Memory, Region};
use crate::store::table::{
    KeyHasher, SEAL_AT, SET_BYTES, SHARDS_BYTES, Seal, Swept, Table, sets_for,
};

/// The place of the shards: behind the words of the live part.
const SHARDS_AT: usize = FIXED + 512;
/// The place of the sets: the third page.
pub(super) const SETS_AT: usize = 2 * FIXED;
const _: () = assert!(SHARDS_AT + SHARDS_BYTES <= RECORDS_AT && WORDS * 8 <= 512);

/// The lock of a file that a process wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// An exclusive lock if no other process uses the file, and otherwise a shared one.
    AloneIfUnused,
    /// A shared lock.
    Shared,
}

/// A state file that is locked and has the wanted hash function and algorithm.
pub(super) struct CheckedFile {
    pub(super) file: File,
    path: PathBuf,
    pub(super) header: FileHeader,
    hasher: KeyHasher,
    /// The limit under which the states were stored.
    pub(super) limit: Limit,
    /// True if no other process uses the file. The lock is then exclusive.
    pub(super) is_alone: bool,
}

impl CheckedFile {
    /// Locks a file and checks its header.
    pub(super) fn open(
        folder: &Folder,
        stem: &Stem,
        generation: u64,
        wanted: &FileSpec<'_>,
        access: Access,
    ) -> Result<Self, StateError> {
        let file = folder.open_file(stem, generation)?;
        let path = folder.path_of(stem, generation);
        let is_alone = lock(&file, &path, access)?;
        // The file may have been removed before it was locked.
        folder.check(&file, &path)?;
        let refuse = |fault: HeaderFault| fault.of(&path).held_by(holders(&file));
        let header = read_header(&file, &path, generation)?.map_err(refuse)?;
        let (hasher, limit) = check(&header, wanted).map_err(refuse)?;
        Ok(Self {
            file,
            path,
            header,
            hasher,
            limit,
            is_alone,
        })
    }

    fn refused(&self, fault: HeaderFault) -> StateError {
        fault.of(&self.path).held_by(holders(&self.file))
    }

    /// Returns true if the file can keep its states under the wanted limit and capacity. A sealed
    /// file cannot, since other processes may have moved clients to a file that is gone.
    pub(super) fn keeps_states(&self, wanted: &FileSpec<'_>) -> Result<bool, StateError> {
        let is_sealed = self.seal()? != Seal::None;
        Ok(!is_sealed && self.has_sets_for(wanted) && wanted.limit.keeps_states_of(&self.limit))
    }

    /// Reads the seal of the table.
    pub(super) fn seal(&self) -> Result<Seal, StateError> {
        let mut seal = [0; 16];
        self.file
            .read_exact_at(&mut seal, (SHARDS_AT + SEAL_AT) as u64)
            .map_err(|error| StateError::io(&self.path, "read", error))?;
        Ok(Seal::from_bytes(seal))
    }

    /// Returns true if the file is as large as one for the wanted capacity.
    pub(super) fn has_sets_for(&self, wanted: &FileSpec<'_>) -> bool {
        self.header.sets == sets_for(wanted.capacity) as u64
    }

    /// Writes the present clock into the file, which no other process uses, and sweeps it. The lock is
    /// released: the lock of the directory keeps others away.
    pub(super) fn renewed(
        self,
        wanted: &FileSpec<'_>,
        now: impl FnOnce(Anchor) -> Nanos,
    ) -> Result<Self, StateError> {
        let io = |error| StateError::io(&self.path, "open", error);
        let copy = Self {
            file: self.file.try_clone().map_err(io)?,
            path: self.path.clone(),
            header: self.header.clone(),
            ..self
        };
        let stored = self.limit;
        self.map(
            &FileSpec {
                limit: &stored,
                ..*wanted
            },
            now,
        )?;
        unlock(&copy.file);
        Ok(copy)
    }

    /// Returns the clients of the file, which move to a later generation.
    pub(super) fn into_predecessor(self) -> Result<Predecessor, StateError> {
        let capacity = self.header.capacity as usize;
        let (_, table) = map(&self.file, &self.path, self.header.sets as usize, capacity)?;
        Ok(Predecessor::new(self.header.generation, self.limit, table))
    }

    /// Maps the file, and sweeps it if no other process uses it.
    pub(super) fn map(
        self,
        wanted: &FileSpec<'_>,
        now: impl FnOnce(Anchor) -> Nanos,
    ) -> Result<Opened, StateError> {
        let path = &*self.path;
        if self.is_alone {
            // A copy of the file may be sparse.
            allocate(&self.file, path, self.header.sets as usize)?;
        }
        let present = Present::read().ok_or_else(|| {
            StateError::refused(path, "boot id", "none", "/proc/sys/kernel/random/boot_id")
        })?;
        let (own, table) = map(&self.file, path, self.header.sets as usize, wanted.capacity)?;
        let shared = clock(own, self.is_alone, &present, &self.header, wanted)
            .map_err(|fault| self.refused(fault))?;
        let now = now(shared.anchor);
        let latest = wanted.limit.greatest(now);
        let swept = if self.is_alone {
            table.sweep(latest)
        } else {
            Swept::default()
        };
        shared.live.reached(now.get());
        let text = wanted.limit.text();
        if text != self.header.rule {
            rule_text::write(&self.file, &text)
                .map_err(|error| StateError::io(path, "write", error))?;
        }
        flock(&self.file, FlockOperation::NonBlockingLockShared)
            .map_err(|error| StateError::io(path, "lock", error))?;
        let is_shared = wanted.shared.is_some();
        let file = StateFile::new(path.into(), shared, is_shared, wanted.known, swept);
        Ok(Opened {
            table,
            hasher: self.hasher,
            file,
        })
    }
}

/// Returns the words of a file's clock, and its table.
pub(super) fn map(
    file: &File,
    path: &Path,
    sets: usize,
    capacity: usize,
) -> Result<(Live, Table), StateError> {
    let length = SETS_AT + sets * SET_BYTES;
    let copy = file
        .try_clone()
        .map_err(|error| StateError::io(path, "open", error))?;
    let mapping = Mapping::new(copy, length).map_err(|error| StateError::io(path, "map", error))?;
    let memory: Arc<dyn Memory> = Arc::new(mapping);
    let live = Region::mapped(&memory, FIXED, WORDS).map(Live);
    let table = Table::mapped(&memory, SHARDS_AT, SETS_AT, sets, capacity);
    live.zip(table)
        .ok_or_else(|| StateError::refused(path, "length", length, "a table that fits memory"))
}

/// Returns the clock of a file: its own, or that of its directory.
fn clock(
    own: Live,
    is_alone: bool,
    present: &Present,
    header: &FileHeader,
    wanted: &FileSpec<'_>,
) -> Result<KeyAndClock, HeaderFault> {
    let Some(shared) = wanted.shared else {
        let anchor = if is_alone {
            own.renew(present)
        } else {
            own.anchor(present)
        }?;
        return Ok(KeyAndClock {
            key: header.key,
            anchor,
            live: Arc::new(own),
        });
    };
    if is_alone {
        own.write(&shared.anchor, present);
    }
    compare(&own.anchor(present)?, &shared.anchor)?;
    Ok(shared.clone())
}

/// Returns an error if a file's clock is not that of its directory.
pub(super) fn compare(own: &Anchor, shared: &Anchor) -> Result<(), HeaderFault> {
    if own == shared {
        return Ok(());
    }
    let found = format!("{own:?}");
    let expected = format!("{shared:?}");
    Err(HeaderFault {
        field: "clock",
        found,
        expected,
    })
}

/// Locks a file. Returns true if the lock is exclusive, since no other process uses the file.
pub(super) fn lock(file: &File, path: &Path, access: Access) -> Result<bool, StateError> {
    if access == Access::AloneIfUnused {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(StateError::io(path, "lock", error)),
        }
    }
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => {
            let locked = StateError::refused(path, "lock", "held exclusively", "a shared lock");
            Err(locked.held_by(holders(file)))
        }
        Err(error) => Err(StateError::io(path, "lock", error)),
    }
}

/// Releases the lock of a file at once. A process that another thread is starting has a copy of the file, with
/// the lock, for a moment.
pub(super) fn unlock(file: &File) {
    let _ = flock(file, FlockOperation::Unlock);
}

/// Reads the header of a file whose name has this generation, with the rule's present text.
pub(super) fn read_header(
    file: &File,
    path: &Path,
    generation: u64,
) -> Result<Result<FileHeader, HeaderFault>, StateError> {
    let io = |error| StateError::io(path, "read", error);
    let bytes = file.metadata().map_err(io)?.len();
    let mut page = [0; FIXED];
    if bytes < SETS_AT as u64 {
        let found = format!("{bytes} bytes");
        let expected = format!("at least {SETS_AT}");
        return Ok(Err(HeaderFault {
            field: "length",
            found,
            expected,
        }));
    }
    file.read_exact_at(&mut page, 0).map_err(io)?;
    let text = rule_text::read(file).map_err(io)?;
    let header = FileHeader::decode(&page, bytes, SETS_AT);
    Ok(header.and_then(|header| {
        if header.generation != generation {
            let found = format!("{}", header.generation);
            let expected = format!("{generation}");
            return Err(HeaderFault {
                field: "generation",
                found,
                expected,
            });
        }
        Ok(FileHeader {
            rule: text.unwrap_or(header.rule),
            ..header
        })
    }))
}

/// Compares a header with the wanted states. Returns the hasher of the file's keys, and the limit
/// under which its states were stored.
fn check(header: &FileHeader, wanted: &FileSpec<'_>) -> Result<(KeyHasher, Limit), HeaderFault> {
    let hasher = check_hash(header, Some(wanted.known), wanted.key)?;
    Ok((hasher, stored_limit(header)?))
}

/// Returns the limit of a file's states.
pub(super) fn stored_limit(header: &FileHeader) -> Result<Limit, HeaderFault> {
    let stored = header.rule.parse::<Rule>().ok().map(|rule| *rule.limit());
    stored.filter(Limit::fits_words).ok_or_else(|| HeaderFault {
        field: "rule",
        found: header.rule.clone(),
        expected: "a rule whose states are kept in files".into(),
    })
}

/// Returns the hasher of a file's keys, if it hashes a known key as the creator did and has the key
/// of the file's directory.
pub(super) fn check_hash(
    header: &FileHeader,
    known: Option<fn(&KeyHasher) -> u64>,
    key: Option<&[u8; 16]>,
) -> Result<KeyHasher, HeaderFault> {
    let fault = |field, found, expected| {
        Err(HeaderFault {
            field,
            found,
            expected,
        })
    };
    let hasher = KeyHasher::with_key(&header.key);
    if header.hash != hasher.algorithm() as u32 {
        let expected = format!("{}", hasher.algorithm() as u32);
        return fault("hash function", format!("{}", header.hash), expected);
    }
    if let Some(known) = known
        .map(|known| known(&hasher))
        .filter(|known| *known != header.known)
    {
        let expected = format!("{known:016x}: the keys have another type, or hash otherwise");
        return fault(
            "hash of a known key",
            format!("{:016x}", header.known),
            expected,
        );
    }
    if key.is_some_and(|key| *key != header.key) {
        return fault(
            "hash key",
            "another one".into(),
            "the key that this process uses".into(),
        );
    }
    Ok(hasher)
}

/// Gives a file its length and all of its blocks, so that no write to its memory can fail later.
pub(super) fn allocate(file: &File, path: &Path, sets: usize) -> Result<(), StateError> {
    let length = sets
        .checked_mul(SET_BYTES)
        .and_then(|bytes| bytes.checked_add(SETS_AT));
    let too_large = || StateError::refused(path, "capacity", format!("{sets} sets"), "fewer");
    let length = length.ok_or_else(too_large)? as u64;
    ftruncate(file, length)
        .and_then(|()| fallocate(file, FallocateFlags::empty(), 0, length))
        .map_err(|error| StateError::io(path, "allocate", format!("{length} bytes: {error}")))
}
