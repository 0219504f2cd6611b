//! Opening and creating state files.

use std::format;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, ftruncate};
use rustix::io::Errno;

use super::error::StateError;
use super::folder::{Folder, Stem};
use super::header::{FIXED, FileHeader, HeaderFault};
use super::holders::holders;
use super::live::{Live, Present, WORDS};
use super::state_file::{FileSpec, KeyAndClock, Opened, StateFile};
use crate::clock::{Anchor, Nanos};
use crate::rule::Rule;
use crate::store::table::mapping::Mapping;
use crate::store::table::region::{Memory, Region};
use crate::store::table::{KeyHasher, SET_BYTES, SHARDS_BYTES, Swept, Table, sets_for};

/// The place of the shards: behind the words of the live part.
const SHARDS_AT: usize = FIXED + 512;
/// The place of the sets: the third page.
pub(super) const SETS_AT: usize = 2 * FIXED;
const _: () = assert!(SHARDS_AT + SHARDS_BYTES <= SETS_AT && WORDS * 8 <= 512);

/// Opens the latest generation of a state file, or creates the first one. `now` makes the clock of
/// the given anchor and returns the present instant.
pub(crate) fn open(
    wanted: &FileSpec<'_>,
    now: impl FnOnce(Anchor) -> Nanos,
) -> Result<Opened, StateError> {
    let (path, limit) = (wanted.path, wanted.limit);
    if !limit.fits_words() {
        return Err(StateError::unsupported(limit));
    }
    let stem = Stem::of(path)?;
    let folder = Folder::create(path.parent().unwrap_or(Path::new("")))?;
    let _locked = folder.lock()?;
    let generation = match folder.latest(&stem)? {
        Some(generation) => generation,
        None => create(&folder, &stem, wanted)?,
    };
    let file = folder.open_file(&stem, generation)?;
    use_file(file, &folder.path_of(&stem, generation), wanted, now)
}

/// Checks the header of a file, maps the file, and sweeps it if no other process uses it.
fn use_file(
    file: File,
    path: &Path,
    wanted: &FileSpec<'_>,
    now: impl FnOnce(Anchor) -> Nanos,
) -> Result<Opened, StateError> {
    let is_alone = lock(&file, path)?;
    let users = || holders(&file);
    let refuse = |fault: HeaderFault| {
        let HeaderFault { field, found, expected } = fault;
        StateError::refused(path, field, found, expected).held_by(users())
    };
    let header = read_header(&file, path)?.map_err(refuse)?;
    let hasher = check(&header, wanted).map_err(refuse)?;
    let present = Present::read().ok_or_else(|| {
        StateError::refused(path, "boot id", "none", "/proc/sys/kernel/random/boot_id")
    })?;
    let length = SETS_AT + header.sets as usize * SET_BYTES;
    let copy = file.try_clone().map_err(|error| StateError::io(path, "open", error))?;
    let mapping = Mapping::new(copy, length).map_err(|error| StateError::io(path, "map", error))?;
    let memory: Arc<dyn Memory> = Arc::new(mapping);
    let unusable = || StateError::refused(path, "length", length, "a table that fits memory");
    let own = Live(Region::mapped(&memory, FIXED, WORDS).ok_or_else(unusable)?);
    let (sets, capacity) = (header.sets as usize, wanted.capacity);
    let table = Table::mapped(&memory, SHARDS_AT, SETS_AT, sets, capacity).ok_or_else(unusable)?;
    let shared = clock(own, is_alone, &present, &header, wanted).map_err(refuse)?;
    let now = now(shared.anchor);
    let swept = if is_alone { table.sweep(wanted.limit.greatest(now)) } else { Swept::default() };
    shared.live.reached(now.get());
    flock(&file, FlockOperation::NonBlockingLockShared)
        .map_err(|error| StateError::io(path, "lock", error))?;
    Ok(Opened { table, hasher, file: StateFile { shared, swept, path: path.into() } })
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
        let anchor = if is_alone { own.renew(present) } else { own.anchor(present) }?;
        return Ok(KeyAndClock { key: header.key, anchor, live: Arc::new(own) });
    };
    if is_alone {
        own.write(&shared.anchor, present);
    }
    let anchor = own.anchor(present)?;
    if anchor == shared.anchor {
        return Ok(shared.clone());
    }
    let (found, expected) = (format!("{anchor:?}"), format!("{:?}", shared.anchor));
    Err(HeaderFault { field: "clock", found, expected })
}

/// Locks a file: exclusively if no other process uses it, and then returns true.
pub(super) fn lock(file: &File, path: &Path) -> Result<bool, StateError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Ok(true),
        Err(Errno::WOULDBLOCK) => {}
        Err(error) => return Err(StateError::io(path, "lock", error)),
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

pub(super) fn read_header(
    file: &File,
    path: &Path,
) -> Result<Result<FileHeader, HeaderFault>, StateError> {
    let io = |error| StateError::io(path, "read", error);
    let bytes = file.metadata().map_err(io)?.len();
    let mut page = [0; FIXED];
    if bytes < SETS_AT as u64 {
        let (found, expected) = (format!("{bytes} bytes"), format!("at least {SETS_AT}"));
        return Ok(Err(HeaderFault { field: "length", found, expected }));
    }
    file.read_exact_at(&mut page, 0).map_err(io)?;
    Ok(FileHeader::decode(&page, bytes, SETS_AT))
}

/// Compares a header with the wanted table. Returns the hasher of the file's keys.
fn check(header: &FileHeader, wanted: &FileSpec<'_>) -> Result<KeyHasher, HeaderFault> {
    let fault = |field, found, expected| Err(HeaderFault { field, found, expected });
    let hasher = KeyHasher::with_key(&header.key);
    let known = (wanted.known)(&hasher);
    if header.hash != hasher.algorithm() as u32 {
        let expected = format!("{}", hasher.algorithm() as u32);
        return fault("hash function", format!("{}", header.hash), expected);
    }
    if header.known != known {
        let expected = format!("{known:016x}: the keys have another type, or hash otherwise");
        return fault("hash of a known key", format!("{:016x}", header.known), expected);
    }
    if wanted.shared.is_some_and(|shared| shared.key != header.key) {
        return fault("hash key", "another one".into(), "the key of the directory".into());
    }
    let (stored, limit) = (header.rule.parse::<Rule>(), wanted.limit);
    let Some(stored) = stored.ok() else {
        return fault("rule", header.rule.clone(), limit.text());
    };
    if !limit.is_of_the_algorithm_of(stored.limit()) {
        return fault("rule family", header.rule.clone(), limit.text());
    }
    if !limit.keeps_states_of(stored.limit()) {
        return fault("rule", header.rule.clone(), limit.text());
    }
    if header.sets != sets_for(wanted.capacity) as u64 {
        let expected = format!("{} clients", wanted.capacity);
        return fault("capacity", format!("{} clients", header.capacity), expected);
    }
    Ok(hasher)
}

/// Creates the first generation of a file, and returns its number.
fn create(folder: &Folder, stem: &Stem, wanted: &FileSpec<'_>) -> Result<u64, StateError> {
    let (sets, generation) = (sets_for(wanted.capacity), 1);
    folder.create_file(stem, generation, |file, path| {
        let io = |error: std::io::Error| StateError::io(path, "write", error);
        let mut key = wanted.shared.map_or([0; 16], |shared| shared.key);
        if wanted.shared.is_none() {
            getrandom::fill(&mut key)
                .map_err(|error| StateError::io(path, "read random bytes", error))?;
        }
        let hasher = KeyHasher::with_key(&key);
        let header = FileHeader {
            hash: hasher.algorithm() as u32,
            key,
            known: (wanted.known)(&hasher),
            sets: sets as u64,
            capacity: wanted.capacity as u64,
            generation,
            rule: wanted.limit.text(),
        };
        allocate(file, path, sets)?;
        file.write_all_at(&header.encode(), 0).map_err(io)
    })?;
    Ok(generation)
}

/// Gives a file its length and all of its blocks, so that no write to its memory can fail later.
pub(super) fn allocate(file: &File, path: &Path, sets: usize) -> Result<(), StateError> {
    let length = sets.checked_mul(SET_BYTES).and_then(|bytes| bytes.checked_add(SETS_AT));
    let too_large = || StateError::refused(path, "capacity", format!("{sets} sets"), "fewer");
    let length = length.ok_or_else(too_large)? as u64;
    ftruncate(file, length)
        .and_then(|()| fallocate(file, FallocateFlags::empty(), 0, length))
        .map_err(|error| StateError::io(path, "allocate", format!("{length} bytes: {error}")))
}
