//! The next generation of a state file, for a limit that gives states another meaning.

use super::checked::{CheckedFile, map};
use super::create::write;
use super::error::StateError;
use super::folder::{Folder, Stem};
use super::header::FileHeader;
use super::state_file::FileSpec;
use crate::algorithm::State;
use crate::clock::{Anchor, Nanos};
use crate::store::by_rank::ByRank;

/// Creates the next generation of a file that no other process uses, with the states of all clients
/// converted to the wanted limit. Returns the new generation.
///
/// The present generation stays as it is, so that a process which dies meanwhile leaves either of both
/// complete. It is removed when the next one is used; see [`StateFile::begin`].
///
/// [`StateFile::begin`]: super::StateFile::begin
pub(super) fn convert(
    folder: &Folder,
    stem: &Stem,
    old: CheckedFile,
    wanted: &FileSpec<'_>,
    now: impl FnOnce(Anchor) -> Nanos,
) -> Result<u64, StateError> {
    let limit = wanted.limit;
    let generation = old.header.generation + 1;
    let header = FileHeader {
        generation,
        rule: limit.text(),
        ..old.header.clone()
    };
    let sets = header.sets as usize;
    let stored = old.limit;
    let source = old
        .file
        .try_clone()
        .map_err(|error| StateError::io(wanted.path, "open", error))?;
    let mut instant = Nanos::ZERO;
    let from = old.map(
        &FileSpec {
            limit: &stored,
            ..*wanted
        },
        |anchor| {
            instant = now(anchor);
            instant
        },
    )?;
    folder.create_file(stem, generation, |file, path| {
        write(file, path, &header, Some((&source, wanted.path)))?;
        let (_, into) = map(file, path, sets, wanted.capacity)?;
        let converted = |word| {
            let state: State = stored.state_of(word)?;
            limit.word_or_above(&limit.convert(&stored, state, instant)?)
        };
        from.table
            .copy_converted(&into, converted, &ByRank(limit, instant));
        Ok(())
    })?;
    Ok(generation)
}

#[cfg(test)]
mod tests {
    use std::{format, fs, vec};

    use super::super::checked::SETS_AT;
    use super::super::header::{FIXED, FileHeader};
    use crate::{Cost, Limiter, Rule, StateDirectory};

    #[test]
    fn the_next_generation_has_the_clients_and_the_clock() {
        let directory = format!("earrrl-convert-{}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        let open = |text: &str| -> Limiter<u64> {
            let builder = Limiter::builder(text.parse::<Rule>().unwrap()).capacity(100);
            builder
                .state_file(directory.join("login.earrrl"))
                .build()
                .unwrap()
        };
        let read = |generation| {
            let file = fs::read(directory.join(format!("login.{generation}.earrrl"))).unwrap();
            let header =
                FileHeader::decode(file.first_chunk().unwrap(), file.len() as u64, SETS_AT);
            (file[FIXED..FIXED + 8].to_vec(), header.unwrap().rule)
        };
        let first = open("fixed-window 9/3650d");
        (0..3).for_each(|_| assert!(first.check(&7).is_allowed()));
        drop(first);
        let (wall, _) = read(1);
        let second = open("fixed-window 5/3000d");
        let [left, new] = [7, 8].map(|key| second.peek(&key, Cost::ONE).unwrap().remaining());
        let files = StateDirectory::list(&directory).unwrap();
        let files = files
            .into_iter()
            .map(|file| file.map(|file| (file.generation, file.limit)));
        let files: Result<vec::Vec<_>, _> = files.collect();
        let found = (left, new, read(2), files.unwrap());
        fs::remove_dir_all(&directory).unwrap();
        let limit = second.rule().limit().text();
        assert_eq!(found, (2, 5, (wall, limit.clone()), vec![(2, limit)]));
    }
}
