//! The directory of state files: its security, its lock, and the names of the files in it.
//!
//! A rule's file is called `login.1f2e3d4c.earrrl`: the rule's name, and a tag for the meaning of the states in
//! it. A rule whose states get another meaning has another file.
//!
//! Files are created, opened and replaced only under an exclusive lock of the directory, which the
//! kernel releases if the process dies.

use core::fmt::Display;
use std::format;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::Arc;
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

/// An open file or directory with its path, which errors name.
#[derive(Clone, Debug)]
pub(super) struct NamedFile {
    pub(super) file: Arc<File>,
    pub(super) path: PathBuf,
}

impl NamedFile {
    /// Names the file and the operation in an error of the system.
    pub(super) fn doing<T, E: Display>(
        &self,
        operation: &'static str,
        result: Result<T, E>,
    ) -> Result<T, StateError> {
        result.map_err(|error| StateError::io(&self.path, operation, error))
    }

    /// Names the file, and the processes that use it, in an error of its content.
    pub(super) fn checked<T>(&self, result: Result<T, StateError>) -> Result<T, StateError> {
        result.map_err(|fault| fault.of(&self.path, holders(&self.file)))
    }

    /// Returns the error of a property of the file.
    pub(super) fn refused(
        &self,
        field: &'static str,
        found: impl Display,
        expected: impl Display,
    ) -> StateError {
        StateError::refused(&self.path, field, found, expected)
    }

    /// Locks the file: exclusively if no other process uses it. Returns true in that case.
    pub(super) fn lock(&self) -> Result<bool, StateError> {
        if self.try_lock(FlockOperation::NonBlockingLockExclusive)? {
            return Ok(true);
        }
        if self.try_lock(FlockOperation::NonBlockingLockShared)? {
            return Ok(false);
        }
        let locked = StateError::fault("lock", "held exclusively", "a shared lock");
        self.checked(Err(locked))
    }

    /// Locks the file. Returns false if the lock of another process excludes that.
    pub(super) fn try_lock(&self, operation: FlockOperation) -> Result<bool, StateError> {
        match flock(&self.file, operation) {
            Err(Errno::WOULDBLOCK) => Ok(false),
            done => self.doing("lock", done).map(|()| true),
        }
    }
}

/// A directory that only this user can change.
#[derive(Debug)]
pub(super) struct Folder {
    directory: NamedFile,
    /// True if files are only read. Root may then read those of other users.
    is_read_only: bool,
}

/// The lock of a directory. It is released when this value is dropped.
pub(super) struct FolderLock<'a>(&'a Folder);

impl Drop for FolderLock<'_> {
    fn drop(&mut self) {
        let _ = flock(&self.0.directory.file, FlockOperation::Unlock);
    }
}

/// The first part of a state file's name: that of its rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stem(pub(super) String);

/// The name of a state file, of its rule and the tag for the meaning of its states.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileName {
    pub(super) stem: Stem,
    tag: String,
}

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

    /// Returns the name of the file with this stem and a tag.
    pub(super) fn with_tag(&self, tag: String) -> FileName {
        FileName {
            stem: self.clone(),
            tag,
        }
    }
}

impl FileName {
    /// Parses a name. Earlier versions numbered their files, so a tag may be shorter than that of this version.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (stem, tag) = name.strip_suffix(EXTENSION)?.rsplit_once('.')?;
        let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        let is_tag = (1..=8).contains(&tag.len()) && tag.chars().all(is_digit);
        let stem = Stem::of(Path::new(stem))
            .ok()
            .filter(|found| found.0 == stem)?;
        is_tag.then(|| stem.with_tag(tag.into()))
    }

    pub(super) fn text(&self) -> String {
        format!("{}.{}{EXTENSION}", self.stem.0, self.tag)
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
        let directory = NamedFile {
            file: Arc::new(file.into()),
            path: path.into(),
        };
        let stat = stat(&directory)?;
        let folder = Self {
            directory,
            is_read_only,
        };
        if !folder.accepts_owner(&stat) && stat.st_uid != 0 {
            return Err(owner(&folder.directory, &stat));
        }
        check_mode(&folder.directory, &stat, WRITABLE_BY_OTHERS, "0700")?;
        Ok(folder)
    }

    /// Waits for the directory's lock.
    pub(super) fn lock(&self) -> Result<FolderLock<'_>, StateError> {
        let start = Instant::now();
        let directory = &self.directory;
        loop {
            match flock(&directory.file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::WOULDBLOCK) => {
                    let busy = StateError::fault("lock", "held", "a free lock");
                    return directory.checked(Err(busy));
                }
                done => {
                    directory.doing("lock the directory", done)?;
                    return Ok(FolderLock(self));
                }
            }
        }
    }

    /// Returns the names in the directory that are text.
    pub(super) fn names(&self) -> Result<Vec<String>, StateError> {
        const LIST: &str = "list the directory";
        let directory = &self.directory;
        let mut names = Vec::new();
        for entry in directory.doing(LIST, Dir::read_from(&directory.file))? {
            let entry = directory.doing(LIST, entry)?;
            names.extend(entry.file_name().to_str().map(String::from));
        }
        Ok(names)
    }

    /// Returns all state files of the directory, in the order of their names.
    pub(super) fn files(&self) -> Result<Vec<FileName>, StateError> {
        let names = self.names()?;
        let mut files: Vec<_> = names
            .iter()
            .filter_map(|name| FileName::parse(name))
            .collect();
        files.sort_unstable();
        Ok(files)
    }

    /// Returns the files of a rule.
    pub(super) fn files_of(&self, stem: &Stem) -> Result<Vec<FileName>, StateError> {
        let mut files = self.files()?;
        files.retain(|name| name.stem == *stem);
        Ok(files)
    }

    /// Removes the files of a rule that keep states of another meaning than the file `own`, but for those that
    /// processes use. Returns true if any is left.
    pub(super) fn remove_others(&self, own: &FileName) -> Result<bool, StateError> {
        let mut are_left = false;
        for name in self.files_of(&own.stem)? {
            if name == *own {
                continue;
            }
            if self.is_unused(&name).unwrap_or(false) {
                self.remove(&name.text())?;
            } else {
                are_left = true;
            }
        }
        Ok(are_left)
    }

    /// Returns true if no process uses a file.
    pub(super) fn is_unused(&self, name: &FileName) -> Result<bool, StateError> {
        let file = self.open_file(name)?;
        let is_unused = file.lock()?;
        // Released at once: a process that another thread is starting has a copy of the file, with the lock,
        // for a moment.
        let _ = flock(&file.file, FlockOperation::Unlock);
        Ok(is_unused)
    }

    /// Removes a name, if there is one. Returns true if it was there.
    pub(super) fn remove(&self, name: &str) -> Result<bool, StateError> {
        match unlinkat(&self.directory.file, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(StateError::io(
                &self.directory.path.join(name),
                "remove",
                error,
            )),
        }
    }

    /// Returns the path of a file, for messages.
    pub(super) fn path_of(&self, name: &FileName) -> PathBuf {
        self.directory.path.join(name.text())
    }

    /// Opens a file that is no state file, or creates it.
    pub(super) fn open_or_create(&self, name: &str) -> Result<NamedFile, StateError> {
        let path = self.directory.path.join(name);
        self.open_checked(name, path, OFlags::RDWR | OFlags::CREATE)
    }

    /// Opens a state file that exists.
    pub(super) fn open_file(&self, name: &FileName) -> Result<NamedFile, StateError> {
        let access = if self.is_read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        self.open_checked(&name.text(), self.path_of(name), access)
    }

    /// Opens a file, and checks that only this user can use it. Errors name it by `path`.
    fn open_checked(
        &self,
        name: &str,
        path: PathBuf,
        flags: OFlags,
    ) -> Result<NamedFile, StateError> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.directory.file, name, flags, Mode::RUSR | Mode::WUSR);
        let file = file.map_err(|error| StateError::io(&path, "open", error))?;
        let file = NamedFile {
            file: Arc::new(file.into()),
            path,
        };
        self.check(&file)?;
        Ok(file)
    }

    /// Returns an error unless the file is regular, has this user as its owner, no other names, no
    /// permissions for others, and is on a file system that is known to be safe.
    fn check(&self, file: &NamedFile) -> Result<(), StateError> {
        let stat = stat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(file.refused("type", "not a file", "a regular file"));
        }
        if !self.accepts_owner(&stat) {
            return Err(owner(file, &stat));
        }
        if stat.st_nlink != 1 {
            return Err(file.refused("link count", stat.st_nlink, 1));
        }
        check_mode(file, &stat, OWNER_ONLY, "0600")?;
        let magic = file.doing("statfs", fstatfs(&file.file))?.f_type;
        if FILE_SYSTEMS
            .iter()
            .any(|(known, _)| i64::from(*known) == magic as i64)
        {
            return Ok(());
        }
        let expected = FILE_SYSTEMS.map(|(_, name)| name).join(", ");
        Err(file.refused("file system", format!("{magic:#x}"), expected))
    }

    /// Returns true if the owner is the user of this process, or files are only read and that is root.
    fn accepts_owner(&self, stat: &Stat) -> bool {
        let user = geteuid();
        stat.st_uid == user.as_raw() || self.is_read_only && user.is_root()
    }

    /// Creates a file under a temporary name, lets `fill` write it, and gives it its name, which another file
    /// may have had. A process that dies meanwhile leaves at most the temporary file, which the next one
    /// removes.
    pub(super) fn create_file(
        &self,
        name: &FileName,
        fill: impl FnOnce(&NamedFile) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let folder = &self.directory.file;
        let temporary = format!(".{}{TEMPORARY}", name.stem.0);
        let remove = || unlinkat(folder, &*temporary, AtFlags::empty());
        let _ = remove();
        let create = || {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            let file = self.open_checked(&temporary, self.path_of(name), flags)?;
            fill(&file)?;
            let publish = || {
                fsync(&file.file)?;
                renameat(folder, &*temporary, folder, name.text())?;
                fsync(folder)
            };
            file.doing("write", publish())
        };
        create().inspect_err(|_| _ = remove())
    }
}

fn stat(file: &NamedFile) -> Result<Stat, StateError> {
    file.doing("stat", fstat(&file.file))
}

fn owner(file: &NamedFile, stat: &Stat) -> StateError {
    let found = format!("user {}", stat.st_uid);
    let expected = format!("user {}", geteuid().as_raw());
    file.refused("owner", found, expected)
}

fn check_mode(
    file: &NamedFile,
    stat: &Stat,
    forbidden: u32,
    expected: &'static str,
) -> Result<(), StateError> {
    let mode = stat.st_mode & 0o7777;
    if mode & forbidden == 0 {
        return Ok(());
    }
    Err(file.refused("mode", format!("{mode:04o}"), expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_stem_and_a_tag() {
        let stem = Stem::of(Path::new("/x/login.earrrl")).unwrap();
        assert_eq!(stem, Stem::of(Path::new("login")).unwrap());
        for tag in ["01234567", "89abcdef", "1"] {
            let name = stem.with_tag(tag.into());
            assert_eq!(FileName::parse(&name.text()), Some(name));
        }
        for name in [
            "login.earrrl",
            "login.1",
            "login.+1.earrrl",
            "login.012345678.earrrl",
            "login.0123456G.earrrl",
            ".1.earrrl",
        ] {
            assert_eq!(FileName::parse(name), None, "{name}");
        }
        for name in ["", "..", ".x", "a b", "a/..", &"x".repeat(129)] {
            assert!(Stem::of(Path::new(name)).is_err(), "{name}");
        }
    }
}
