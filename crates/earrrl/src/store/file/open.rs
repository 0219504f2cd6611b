//! Opening state files.
//!
//! All steps happen under the lock of the directory, which the kernel releases if the process dies:
//!
//! 1. The file that keeps states of the wanted meaning is created if there is none. It gets its name when
//!    it is whole, so a process that dies meanwhile leaves at most a temporary file.
//! 2. The file is locked and its header is checked. The lock is exclusive if no other process uses the file.
//! 3. A file that no other process uses and that has another capacity is copied into one of the wanted size,
//!    which takes over the name.
//! 4. The table is mapped. If no other process uses the file, it is swept first: claims and damage are removed.
//! 5. The rule's files with states of another meaning are removed unless other processes use them.

use std::format;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::vec::Vec;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, ftruncate};

use super::error::StateError;
use super::folder::{FileName, Folder, NamedFile, Stem};
use super::header::{FIXED, FileHeader, tag_of};
use super::holders::holders;
use super::live::{Live, Present, WORDS};
use super::rule_text::{self, RECORDS_AT};
use super::state_file::{FileSpec, KeyAndClock, Opened, StateFile};
use crate::algorithm::Limit;
use crate::clock::{Anchor, Nanos};
use crate::rule::Rule;
use crate::store::by_rank::{ByRank, carry};
use crate::store::random_id;
use crate::store::table::mapping::Mapping;
use crate::store::table::region::Region;
use crate::store::table::{KeyHasher, SET_BYTES, SHARDS_BYTES, Swept, Table, sets_for};

/// The place of the shards: behind the words of the live part.
const SHARDS_AT: usize = FIXED + 512;
/// The place of the sets: the third page.
pub(super) const SETS_AT: usize = 2 * FIXED;
const _: () = assert!(SHARDS_AT + SHARDS_BYTES <= RECORDS_AT && WORDS * 8 <= 512);

/// Opens the file that keeps states of the wanted meaning, or creates it. `now` makes the clock of the given
/// anchor and returns the present instant.
pub(crate) fn open(
    wanted: &FileSpec<'_>,
    now: impl FnOnce(Anchor) -> Nanos,
) -> Result<Opened, StateError> {
    StateError::accept(wanted.limit)?;
    let stem = Stem::of(wanted.path)?;
    let folder = Folder::of(wanted.path, &stem)?;
    let _locked = folder.lock()?;
    let name = stem.with_tag(tag_of(wanted.limit));
    let files = folder.files_of(&stem)?;
    let mut before = None;
    if !files.contains(&name) {
        // Another file of the rule has its hash key and its clock, which a process keeps when it changes
        // the rule.
        let sibling = files
            .iter()
            .find_map(|file| open_header(&folder, file).ok());
        before = match &sibling {
            Some((_, header)) => Some(header.rule.clone()),
            None => (!files.is_empty()).then(|| "a limit in a file of another version".into()),
        };
        create(&folder, &name, wanted, sibling.as_ref())?;
    }
    let mut file = CheckedFile::open(&folder, &name, wanted)?;
    let mut make_clock = Some(now);
    let mut instant = Nanos::ZERO;
    let mut now = |anchor| {
        if let Some(make_clock) = make_clock.take() {
            instant = make_clock(anchor);
        }
        instant
    };
    let mut busy = Vec::new();
    if file.header.sets != sets_for(wanted.capacity) as u64 {
        if file.is_alone {
            file.resized(&folder, &name, wanted, &mut now)?;
            file = CheckedFile::open(&folder, &name, wanted)?;
        } else {
            busy = holders(&file.file.file);
        }
    }
    let mut opened = file.map(wanted, &mut now)?;
    opened.file.before = before;
    opened.file.busy = busy;
    let are_left = folder.remove_others(&name).unwrap_or(true);
    opened.file.has_others = AtomicBool::new(are_left);
    Ok(opened)
}

/// Opens a file and reads its header.
pub(super) fn open_header(
    folder: &Folder,
    name: &FileName,
) -> Result<(NamedFile, FileHeader), StateError> {
    let file = folder.open_file(name)?;
    let header = read_header(&file)?;
    Ok((file, header))
}

/// Creates an empty file.
fn create(
    folder: &Folder,
    name: &FileName,
    wanted: &FileSpec<'_>,
    sibling: Option<&(NamedFile, FileHeader)>,
) -> Result<(), StateError> {
    folder.create_file(name, |file| {
        let known_key = wanted.key.or(sibling.map(|(_, header)| &header.key));
        let mut key = known_key.copied().unwrap_or_default();
        if known_key.is_none() {
            file.doing("read random bytes", getrandom::fill(&mut key))?;
        }
        let hasher = KeyHasher::with_key(&key);
        let header = FileHeader {
            hash: hasher.algorithm(),
            key,
            known: (wanted.known)(&hasher),
            sets: sets_for(wanted.capacity) as u64,
            capacity: wanted.capacity as u64,
            id: random_id(),
            rule: wanted.limit.text(),
        };
        write(file, &header, sibling.map(|(sibling, _)| sibling))
    })
}

/// Writes the header of an empty file, and the clock of another file.
fn write(
    file: &NamedFile,
    header: &FileHeader,
    clock_of: Option<&NamedFile>,
) -> Result<(), StateError> {
    allocate(file, header.sets as usize)?;
    file.doing("write", file.file.write_all_at(&header.encode(), 0))?;
    let Some(source) = clock_of else {
        return Ok(());
    };
    let mut clock = [0; 8 * WORDS];
    let read = source.file.read_exact_at(&mut clock, FIXED as u64);
    source.doing("read", read)?;
    file.doing("write", file.file.write_all_at(&clock, FIXED as u64))
}

/// A state file that is locked and has the wanted hash function.
struct CheckedFile {
    file: NamedFile,
    header: FileHeader,
    hasher: KeyHasher,
    /// The limit under which the states were stored.
    limit: Limit,
    /// True if no other process uses the file. The lock is then exclusive.
    is_alone: bool,
}

impl CheckedFile {
    /// Locks a file and checks its header.
    fn open(folder: &Folder, name: &FileName, wanted: &FileSpec<'_>) -> Result<Self, StateError> {
        let file = folder.open_file(name)?;
        let is_alone = file.lock()?;
        let header = read_header(&file)?;
        let hasher = file.checked(check_hash(&header, Some(wanted.known), wanted.key))?;
        let limit = file.checked(stored_limit(&header))?;
        if limit.meaning() != wanted.limit.meaning() {
            let other = StateError::fault("rule", &header.rule, wanted.limit.text());
            return file.checked(Err(other));
        }
        Ok(Self {
            file,
            header,
            hasher,
            limit,
            is_alone,
        })
    }

    /// Copies the file, which no other process uses, into one of the wanted size, which takes over the name.
    /// Until then the file stays as it is, so a process that dies meanwhile leaves one of both complete.
    fn resized(
        &self,
        folder: &Folder,
        name: &FileName,
        wanted: &FileSpec<'_>,
        now: &mut impl FnMut(Anchor) -> Nanos,
    ) -> Result<(), StateError> {
        let header = FileHeader {
            sets: sets_for(wanted.capacity) as u64,
            capacity: wanted.capacity as u64,
            // A smaller file may lack some clients.
            id: random_id(),
            ..self.header.clone()
        };
        let limit = &self.limit;
        let mut instant = Nanos::ZERO;
        // Renews the clock if the machine was restarted, and sweeps.
        let from = self.map(&FileSpec { limit, ..*wanted }, &mut |anchor| {
            instant = now(anchor);
            instant
        })?;
        folder.create_file(name, |file| {
            write(file, &header, Some(&self.file))?;
            let (_, into) = map(file, header.sets as usize, wanted.capacity)?;
            from.table.copy_to(&into, &ByRank(limit, instant));
            Ok(())
        })
    }

    /// Maps the file, and sweeps it if no other process uses it. States that were stored under another rate
    /// or quota are carried over to the wanted one.
    fn map(
        &self,
        wanted: &FileSpec<'_>,
        now: &mut impl FnMut(Anchor) -> Nanos,
    ) -> Result<Opened, StateError> {
        let file = &self.file;
        let sets = self.header.sets as usize;
        if self.is_alone {
            // A copy of the file may be sparse.
            allocate(file, sets)?;
        }
        let present = Present::read()
            .ok_or_else(|| file.refused("boot id", "none", "/proc/sys/kernel/random/boot_id"))?;
        let (own, table) = map(file, sets, self.header.capacity as usize)?;
        let shared = clock(own, self.is_alone, &present, &self.header, wanted);
        let shared = file.checked(shared)?;
        let table = table.in_file(self.header.id);
        let now = now(shared.anchor);
        let swept = if self.is_alone {
            table.sweep(self.limit.greatest(now).max(wanted.limit.greatest(now)))
        } else {
            Swept::default()
        };
        carry(&table, &self.limit, wanted.limit, now);
        shared.live.reached(now.get());
        let text = wanted.limit.text();
        if text != self.header.rule {
            file.doing("write", rule_text::write(&file.file, &text))?;
        }
        let locked = flock(&file.file, FlockOperation::NonBlockingLockShared);
        file.doing("lock", locked)?;
        let file = StateFile::new(file.clone(), shared, wanted, swept);
        Ok(Opened {
            table,
            hasher: self.hasher,
            file,
        })
    }
}

/// Returns the words of a file's clock, and its table.
fn map(file: &NamedFile, sets: usize, capacity: usize) -> Result<(Live, Table), StateError> {
    let length = SETS_AT + sets * SET_BYTES;
    let mapping = file.doing("map", Mapping::new(&file.file, length))?;
    let memory = Arc::new(mapping);
    let live = Region::mapped(&memory, FIXED, WORDS).map(Live);
    let table = Table::mapped(&memory, SHARDS_AT, SETS_AT, sets, capacity);
    live.zip(table)
        .ok_or_else(|| file.refused("length", length, "a table that fits memory"))
}

/// Returns the clock of a file: its own, or that of its directory.
fn clock(
    own: Live,
    is_alone: bool,
    present: &Present,
    header: &FileHeader,
    wanted: &FileSpec<'_>,
) -> Result<KeyAndClock, StateError> {
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
pub(super) fn compare(own: &Anchor, shared: &Anchor) -> Result<(), StateError> {
    if own == shared {
        return Ok(());
    }
    let found = format!("{own:?}");
    Err(StateError::fault("clock", found, format!("{shared:?}")))
}

/// Reads the header of a file, with the rule's present text.
pub(super) fn read_header(file: &NamedFile) -> Result<FileHeader, StateError> {
    let bytes = file.doing("read", file.file.metadata())?.len();
    let mut page = [0; FIXED];
    if bytes < SETS_AT as u64 {
        let found = format!("{bytes} bytes");
        let short = StateError::fault("length", found, format!("at least {SETS_AT}"));
        return file.checked(Err(short));
    }
    file.doing("read", file.file.read_exact_at(&mut page, 0))?;
    let text = file.doing("read", rule_text::read(&file.file))?;
    let header = file.checked(FileHeader::decode(&page, bytes, SETS_AT))?;
    Ok(FileHeader {
        rule: text.unwrap_or(header.rule),
        ..header
    })
}

/// Returns the limit of a file's states.
pub(super) fn stored_limit(header: &FileHeader) -> Result<Limit, StateError> {
    let stored = header.rule.parse::<Rule>().ok().map(|rule| *rule.limit());
    stored.filter(Limit::fits_words).ok_or_else(|| {
        let expected = "a rule whose states are kept in files";
        StateError::fault("rule", &header.rule, expected)
    })
}

/// Returns the hasher of a file's keys, if it hashes a known key as the creator did and has the key
/// of the file's directory.
pub(super) fn check_hash(
    header: &FileHeader,
    known: Option<fn(&KeyHasher) -> u64>,
    key: Option<&[u8; 16]>,
) -> Result<KeyHasher, StateError> {
    let hasher = KeyHasher::with_key(&header.key);
    let algorithm = hasher.algorithm();
    if header.hash != algorithm {
        return Err(StateError::fault("hash function", header.hash, algorithm));
    }
    if let Some(known) = known
        .map(|known| known(&hasher))
        .filter(|known| *known != header.known)
    {
        let found = format!("{:016x}", header.known);
        let expected = format!("{known:016x}: the keys have another type, or hash otherwise");
        return Err(StateError::fault("hash of a known key", found, expected));
    }
    if key.is_some_and(|key| *key != header.key) {
        let expected = "the key that this process uses";
        return Err(StateError::fault("hash key", "another one", expected));
    }
    Ok(hasher)
}

/// Gives a file its length and all of its blocks, so that no write to its memory can fail later.
pub(super) fn allocate(file: &NamedFile, sets: usize) -> Result<(), StateError> {
    let length = sets
        .checked_mul(SET_BYTES)
        .and_then(|bytes| bytes.checked_add(SETS_AT));
    let too_large = || file.refused("capacity", format!("{sets} sets"), "fewer");
    let length = length.ok_or_else(too_large)? as u64;
    let allocated = ftruncate(&file.file, length)
        .and_then(|()| fallocate(&file.file, FallocateFlags::empty(), 0, length));
    let allocated = allocated.map_err(|error| format!("{length} bytes: {error}"));
    file.doing("allocate", allocated)
}
