//! The directory of state files: its security, its lock, and the generations of a file in it.
//!
//! Files are created, opened and replaced only under an exclusive lock of the directory, which the
//! kernel releases if the process dies.

use std::format;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::string::String;
use std::time::{Duration, Instant};
use std::vec::Vec;

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, fstatfs, fsync,
    mkdir, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::error::StateError;
use super::holders::holders;

/// The end of a state file's name.
const EXTENSION: &str = ".earrrl";
/// The end of the name of a file that is being written.
pub(super) const TEMPORARY: &str = ".tmp";
/// The permissions of everybody but the owner.
const OWNER_ONLY: u32 = 0o077;
/// The permissions to write of others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The type and the permission of a directory in which only the owner of a file may rename or remove
/// it.
const STICKY: u32 = 0o041_000;
/// The time for which the lock of the directory is awaited: much longer than it takes to sweep the
/// largest file.
const PATIENCE: Duration = Duration::from_secs(10);
/// The magic numbers of the file systems that keep the promise of `fallocate` that later writes do
/// not fail: ext4, XFS and tmpfs. Where a write copies the block, a full disk would kill the
/// process.
const FILE_SYSTEMS: [(u32, &str); 3] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x0102_1994, "tmpfs"),
];

/// A directory that only this user can change.
#[derive(Debug)]
pub(super) struct Folder {
    file: File,
    path: PathBuf,
    /// True if files are only read. Root may then read those of other users.
    is_read_only: bool,
}

/// The lock of a directory. It is released when this value is dropped.
pub(super) struct FolderLock<'a>(&'a Folder);

impl Drop for FolderLock<'_> {
    fn drop(&mut self) {
        let _ = flock(&self.0.file, FlockOperation::Unlock);
    }
}

/// The name of a state file without its generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stem(pub(super) String);

impl Stem {
    /// Returns the stem of `login` or `login.earrrl`.
    pub(super) fn of(path: &Path) -> Result<Self, StateError> {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let stem = name.strip_suffix(EXTENSION).unwrap_or(name);
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if stem.is_empty()
            || stem.len() > 128
            || stem.starts_with('.')
            || !stem.chars().all(allowed)
        {
            let expected = "1 to 128 of A-Z a-z 0-9 . _ -, no dot first";
            return Err(StateError::refused(
                path,
                "name",
                format!("{name:?}"),
                expected,
            ));
        }
        Ok(Self(stem.into()))
    }

    /// Returns the stem and the generation of a file's name.
    pub(super) fn split(name: &str) -> Option<(Self, u64)> {
        let (stem, _) = name.strip_suffix(EXTENSION)?.rsplit_once('.')?;
        let stem = Self::of(Path::new(stem)).ok()?;
        Some((stem.clone(), stem.generation(name)?))
    }

    pub(super) fn name(&self, generation: u64) -> String {
        format!("{}.{generation}{EXTENSION}", self.0)
    }

    /// Returns the generation of a file with this stem.
    fn generation(&self, name: &str) -> Option<u64> {
        let number = name
            .strip_prefix(&self.0)?
            .strip_prefix('.')?
            .strip_suffix(EXTENSION)?;
        number
            .parse()
            .ok()
            .filter(|generation| self.name(*generation) == name)
    }
}

impl Folder {
    /// Opens the directory of a file, and creates it if its parent exists.
    ///
    /// Where all users may create files, as in `/dev/shm` and `/tmp`, the file gets a directory of its
    /// own that is called like it: in a sticky directory, no one else can replace that.
    pub(super) fn of(path: &Path, stem: &Stem) -> Result<Self, StateError> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let mode = std::fs::symlink_metadata(parent).map_or(0, |known| known.mode());
        if mode & STICKY == STICKY && mode & WRITABLE_BY_OTHERS != 0 {
            return Self::create(&parent.join(&stem.0));
        }
        Self::create(parent)
    }

    /// Opens a directory, and creates it if its parent exists.
    pub(super) fn create(path: &Path) -> Result<Self, StateError> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        match mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Self::open(path),
            Err(error) => Err(StateError::io(path, "create the directory", error)),
        }
    }

    /// Opens a directory that exists, after checking that only this user can change it.
    pub(super) fn open(path: &Path) -> Result<Self, StateError> {
        Self::open_as(path, false)
    }

    /// Opens a directory whose files are only read.
    pub(super) fn open_to_read(path: &Path) -> Result<Self, StateError> {
        Self::open_as(path, true)
    }

    fn open_as(path: &Path, is_read_only: bool) -> Result<Self, StateError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let file = openat(rustix::fs::CWD, path, flags, Mode::empty()).map_err(|error| {
            if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
                let expected = "a directory, which may be below the link";
                return StateError::refused(path, "type", "a symbolic link", expected);
            }
            StateError::io(path, "open the directory", error)
        })?;
        let folder = Self {
            file: file.into(),
            path: path.into(),
            is_read_only,
        };
        let stat = folder.stat(&folder.file, path)?;
        if !folder.accepts_owner(&stat) && stat.st_uid != 0 {
            return Err(owner(path, &stat));
        }
        check_mode(path, &stat, WRITABLE_BY_OTHERS, "0700")?;
        Ok(folder)
    }

    /// Waits for the directory's lock.
    pub(super) fn lock(&self) -> Result<FolderLock<'_>, StateError> {
        let start = Instant::now();
        loop {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(FolderLock(self)),
                Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::WOULDBLOCK) => {
                    let busy = StateError::refused(&self.path, "lock", "held", "a free lock");
                    return Err(busy.held_by(holders(&self.file)));
                }
                Err(error) => return Err(StateError::io(&self.path, "lock the directory", error)),
            }
        }
    }

    /// Returns the names in the directory that are text.
    pub(super) fn names(&self) -> Result<Vec<String>, StateError> {
        let io = |error| StateError::io(&self.path, "list the directory", error);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.file).map_err(io)? {
            names.extend(entry.map_err(io)?.file_name().to_str().map(String::from));
        }
        Ok(names)
    }

    /// Returns the generations of a file, the latest one last.
    pub(super) fn generations(&self, stem: &Stem) -> Result<Vec<u64>, StateError> {
        let names = self.names()?;
        let mut found: Vec<_> = names
            .iter()
            .filter_map(|name| stem.generation(name))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Returns the generation from which clients move to `later`, whose header names `from`. If that one is gone,
    /// it had no clients left, and they move from the latest one before it. Returns `None` if there is none,
    /// or if the header of a damaged file does not name an earlier generation.
    pub(super) fn before(generations: &[u64], later: u64, from: u64) -> Option<u64> {
        generations
            .iter()
            .rfind(|one| **one <= from)
            .copied()
            .filter(|found| *found < later)
    }

    /// Returns the latest generation of a file, or `None` if there is no such file.
    pub(super) fn latest(&self, stem: &Stem) -> Result<Option<u64>, StateError> {
        Ok(self.generations(stem)?.pop())
    }

    /// Returns all files of the directory, ordered by their stems and generations.
    pub(super) fn files(&self) -> Result<Vec<(Stem, u64)>, StateError> {
        let names = self.names()?;
        let mut files: Vec<_> = names.iter().filter_map(|name| Stem::split(name)).collect();
        files.sort_unstable();
        Ok(files)
    }

    /// Removes a name, if there is one. Returns true if it was there.
    pub(super) fn remove(&self, name: &str) -> Result<bool, StateError> {
        match unlinkat(&self.file, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(StateError::io(&self.path.join(name), "remove", error)),
        }
    }

    /// Returns the path of a file, for messages.
    pub(super) fn path_of(&self, stem: &Stem, generation: u64) -> PathBuf {
        self.path.join(stem.name(generation))
    }

    /// Opens a file that exists, after checking that only this user can use it.
    pub(super) fn open_file(&self, stem: &Stem, generation: u64) -> Result<File, StateError> {
        let path = self.path_of(stem, generation);
        let access = if self.is_read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.file, stem.name(generation), flags, Mode::empty())
            .map_err(|error| StateError::io(&path, "open", error))?;
        let file = File::from(file);
        self.check(&file, &path)?;
        Ok(file)
    }

    /// Returns an error unless the file is regular, has this user as its owner, no other names, no
    /// permissions for others, and is on a file system that is known to be safe.
    pub(super) fn check(&self, file: &File, path: &Path) -> Result<(), StateError> {
        let stat = self.stat(file, path)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(StateError::refused(
                path,
                "type",
                "not a file",
                "a regular file",
            ));
        }
        if !self.accepts_owner(&stat) {
            return Err(owner(path, &stat));
        }
        if stat.st_nlink != 1 {
            return Err(StateError::refused(path, "link count", stat.st_nlink, 1));
        }
        check_mode(path, &stat, OWNER_ONLY, "0600")?;
        let magic = fstatfs(file)
            .map_err(|error| StateError::io(path, "statfs", error))?
            .f_type;
        if FILE_SYSTEMS
            .iter()
            .any(|(known, _)| i64::from(*known) == magic as i64)
        {
            return Ok(());
        }
        let expected = FILE_SYSTEMS.map(|(_, name)| name).join(", ");
        Err(StateError::refused(
            path,
            "file system",
            format!("{magic:#x}"),
            expected,
        ))
    }

    /// Returns true if the owner is the user of this process, or files are only read and that is root.
    fn accepts_owner(&self, stat: &Stat) -> bool {
        let user = geteuid();
        stat.st_uid == user.as_raw() || self.is_read_only && user.is_root()
    }

    fn stat(&self, file: &File, path: &Path) -> Result<Stat, StateError> {
        fstat(file).map_err(|error| StateError::io(path, "stat", error))
    }

    /// Creates a file under a temporary name, lets `fill` write it, and gives it its name. A process
    /// that dies meanwhile leaves at most the temporary file, which the next one removes.
    pub(super) fn create_file(
        &self,
        stem: &Stem,
        generation: u64,
        fill: impl FnOnce(&File, &Path) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let name = stem.name(generation);
        let path = self.path_of(stem, generation);
        let temporary = format!(".{}{TEMPORARY}", stem.0);
        let remove = || unlinkat(&self.file, &*temporary, AtFlags::empty());
        let _ = remove();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.file, &*temporary, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|error| StateError::io(&path, "create", error))?);
        let filled = self
            .check(&file, &path)
            .and_then(|()| fill(&file, &path))
            .and_then(|()| {
                let io = |error| StateError::io(&path, "write", error);
                fsync(&file).map_err(io)?;
                renameat(&self.file, &*temporary, &self.file, &*name).map_err(io)?;
                fsync(&self.file).map_err(io)
            });
        filled.inspect_err(|_| _ = remove())
    }
}

fn owner(path: &Path, stat: &Stat) -> StateError {
    let found = format!("user {}", stat.st_uid);
    let expected = format!("user {}", geteuid().as_raw());
    StateError::refused(path, "owner", found, expected)
}

fn check_mode(
    path: &Path,
    stat: &Stat,
    forbidden: u32,
    expected: &'static str,
) -> Result<(), StateError> {
    let mode = stat.st_mode & 0o7777;
    if mode & forbidden == 0 {
        return Ok(());
    }
    Err(StateError::refused(
        path,
        "mode",
        format!("{mode:04o}"),
        expected,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_generation() {
        let stem = Stem::of(Path::new("/x/login.earrrl")).unwrap();
        assert_eq!(stem, Stem::of(Path::new("login")).unwrap());
        assert_eq!(stem.generation(&stem.name(12)), Some(12));
        for name in [
            "login.earrrl",
            "login.01.earrrl",
            "login.1",
            "login.+1.earrrl",
            "xlogin.1.earrrl",
        ] {
            assert_eq!(stem.generation(name), None, "{name}");
        }
        for name in ["", "..", ".x", "a b", "a/..", &"x".repeat(129)] {
            assert!(Stem::of(Path::new(name)).is_err(), "{name}");
        }
    }
}
