//! Streams that have nothing to read at times: standard input, and a log file that is still being written, whose
//! bytes are read as they are appended, through rotation by renaming and by truncation. They report
//! [`io::ErrorKind::WouldBlock`], so that output can be flushed and Ctrl-C be noticed.
//!
//! The file is polled. Notifications by the kernel would save some wake-ups, but do not work on
//! network file systems, where polling would be needed as well.

use std::fs::{self, File, Metadata};
use std::io::Seek as _;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The time for which a stream waits for more before it reports again that there is nothing.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Wraps a stream so that it waits instead of reporting that there is nothing to read. The
/// decompressors need this, since most cannot continue after an error.
pub(super) struct Patient<R>(pub(super) R);

impl<R: Read> Read for Patient<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}

/// Returns standard input as a stream that reports when there is nothing to read.
///
/// # Errors
/// Returns the system's error if standard input is closed.
#[cfg(unix)]
pub(super) fn standard_input() -> io::Result<Box<dyn Read + Send>> {
    use std::os::fd::AsFd as _;

    // `Stdin` has a buffer, which polling would not see.
    let file = io::stdin().as_fd().try_clone_to_owned()?.into();
    Ok(Box::new(Polled {
        file,
        is_idle: false,
    }))
}

/// Returns standard input.
#[cfg(not(unix))]
pub(super) fn standard_input() -> io::Result<Box<dyn Read + Send>> {
    Ok(Box::new(io::stdin()))
}

/// A pipe, terminal or file that reports [`io::ErrorKind::WouldBlock`] when there is nothing to
/// read, and waits for [`PAUSE`] before it does so again.
#[cfg(unix)]
struct Polled {
    file: std::fs::File,
    is_idle: bool,
}

#[cfg(unix)]
impl Read for Polled {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};

        let pause = if self.is_idle { PAUSE } else { Duration::ZERO };
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: pause.subsec_nanos().into(),
        };
        let ready = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&pause))?;
        self.is_idle = ready == 0;
        if self.is_idle {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            self.file.read(out)
        }
    }
}

/// Reads a file without end, and then the files that replace it under its path.
///
/// When there is nothing to read, `read` returns [`io::ErrorKind::WouldBlock`]; each further call
/// waits for [`PAUSE`] first.
pub(super) struct FollowedFile {
    path: PathBuf,
    file: File,
    /// The number of bytes that were read from the file.
    position: u64,
    /// The last byte that was read, since a file may end within a line.
    last: u8,
    /// True if the last call found nothing to read.
    is_idle: bool,
    /// True if another file with content has the path, but the writer may not have finished the open
    /// one: processes reopen their logs one after the other.
    is_replaced: bool,
}

impl FollowedFile {
    /// Opens a file at its start.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: File::open(path)?,
            position: 0,
            last: b'\n',
            is_idle: false,
            is_replaced: false,
        })
    }

    /// Looks for a reason why nothing was appended for a while: goes to the start of a truncated
    /// file, or opens the file that replaced this one. Returns true if it did.
    fn rotate(&mut self) -> io::Result<bool> {
        let open = self.file.metadata()?;
        if open.len() < self.position {
            self.file.rewind()?;
            self.position = 0;
            return Ok(true);
        }
        // Without a file of that name, or with an empty one, the writer still has the open one.
        let Ok(found) = fs::metadata(&self.path) else {
            return Ok(false);
        };
        if identity(&found) == identity(&open) || found.len() == 0 {
            return Ok(false);
        }
        if !std::mem::replace(&mut self.is_replaced, true) {
            return Ok(false);
        }
        let Ok(file) = File::open(&self.path) else {
            return Ok(false);
        };
        (self.file, self.position, self.is_replaced) = (file, 0, false);
        Ok(true)
    }
}

impl Read for FollowedFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.is_idle {
            thread::sleep(PAUSE);
        }
        let len = self.file.read(out)?;
        let was_idle = std::mem::replace(&mut self.is_idle, len == 0);
        if let Some(&last) = out[..len].last() {
            self.position += len as u64;
            self.last = last;
            return Ok(len);
        }
        // The first lines of the next file must not complete the last line of this one.
        if was_idle && self.rotate()? && std::mem::replace(&mut self.last, b'\n') != b'\n' {
            out[0] = b'\n';
            return Ok(1);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// Returns the file's identity, which stays the same when it is renamed.
#[cfg(unix)]
fn identity(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;

    (metadata.dev(), metadata.ino())
}

/// Returns the time of the file's creation, the best identity that other systems have.
#[cfg(not(unix))]
fn identity(metadata: &Metadata) -> Option<std::time::SystemTime> {
    metadata.created().ok()
}

#[cfg(test)]
mod follow_tests {
    use std::io::Write as _;

    use super::*;

    /// Reads on until `text` has `expected`.
    fn await_text(followed: &mut FollowedFile, text: &mut String, expected: &str) {
        let mut out = [0; 7];
        for _ in 0..100 {
            match followed.read(&mut out) {
                Ok(len) => text.push_str(std::str::from_utf8(&out[..len]).unwrap()),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            if text == expected {
                break;
            }
        }
        assert_eq!(text, expected);
    }

    #[test]
    fn each_byte_is_read_once_through_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\ntwo\n").unwrap();
        let mut followed = FollowedFile::open(&path).unwrap();
        let mut text = String::new();
        await_text(&mut followed, &mut text, "one\ntwo\n");
        // The file is renamed; its writer appends a line, and half of another.
        let mut writer = File::options().append(true).open(&path).unwrap();
        fs::rename(&path, folder.path().join("log.1")).unwrap();
        File::create(&path).unwrap();
        writer.write_all(b"three\nhalf").unwrap();
        await_text(&mut followed, &mut text, "one\ntwo\nthree\nhalf");
        for _ in 0..4 {
            let idle = followed.read(&mut [0; 7]).map_err(|error| error.kind());
            assert_eq!(
                idle,
                Err(io::ErrorKind::WouldBlock),
                "the new file is empty"
            );
        }
        fs::write(&path, "four\nfive\nsix\n").unwrap();
        text.clear();
        await_text(&mut followed, &mut text, "\nfour\nfive\nsix\n");
        // The file is truncated.
        fs::write(&path, "seven\n").unwrap();
        text.clear();
        await_text(&mut followed, &mut text, "seven\n");
        // The file is removed, and comes back later.
        fs::remove_file(&path).unwrap();
        for _ in 0..3 {
            assert!(followed.read(&mut [0; 7]).is_err());
        }
        fs::write(&path, "eight\n").unwrap();
        text.clear();
        await_text(&mut followed, &mut text, "eight\n");
    }
}
