//! Opens logs: files or standard input, compressed or not.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use super::follow::FollowedFile;
use super::idle::{Patient, standard_input};
use super::transcode::{ArrayReader, Utf16Reader};
use super::zip::{self, ZipEntry};
use super::zstd::ZstdReader;
use crate::line::Escaped;

/// The number of bytes at the start of a file that are read to identify its compression and
/// encoding.
const MAGIC: usize = 6;

/// The most memory that decompressing an `.xz` file may use, in bytes; output of `xz -9` needs 65
/// MiB.
const XZ_MEMORY: u64 = 128 << 20;

/// One log among the files that a path stands for.
#[derive(Debug, Clone)]
pub(super) struct LogFile {
    path: PathBuf,
    /// The file in the zip archive at the path, if it is one.
    entry: Option<ZipEntry>,
}

/// An opened log, whose bytes are decompressed while they are read.
pub(super) struct Input {
    /// The name of the log as the user gave it, with control characters escaped.
    pub name: String,
    /// The canonical path of the file; `None` for standard input.
    pub path: Option<PathBuf>,
    /// The time of the file's last change; the current time for standard input.
    pub modified: SystemTime,
    /// The decompressed content.
    pub source: Box<dyn Read + Send>,
}

impl LogFile {
    /// Returns the log's name, with control characters escaped.
    pub(super) fn name(&self) -> String {
        Escaped(self.place().as_os_str().as_encoded_bytes()).to_string()
    }

    /// Returns the path, which for a file in an archive continues into it.
    fn place(&self) -> PathBuf {
        self.entry
            .as_ref()
            .map_or(self.path.clone(), |entry| self.path.join(&entry.name))
    }

    /// Returns true for files such as `.swp` and those that macOS adds to archives.
    fn is_hidden(&self) -> bool {
        let place = self.place();
        place
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
    }
}

/// Returns the logs that a path stands for: the path itself, or the files of a directory or of a
/// zip archive. Those of a directory come in the order of their last changes, without the files of
/// its subdirectories.
///
/// # Errors
/// Returns the system's error, or an error if a directory or an archive has no files.
pub(super) fn logs(path: &Path) -> io::Result<Vec<LogFile>> {
    let itself = || LogFile {
        path: path.to_owned(),
        entry: None,
    };
    if path == Path::new("-") {
        return Ok(vec![itself()]);
    }
    let mut files = if path.is_dir() {
        in_directory(path)?
    } else {
        match in_archive(path)? {
            Some(files) => files,
            None => return Ok(vec![itself()]),
        }
    };
    files.retain(|file| !file.is_hidden());
    if files.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "has no files"));
    }
    Ok(files)
}

/// Returns the files of a directory, and of the archives in it.
fn in_directory(path: &Path) -> io::Result<Vec<LogFile>> {
    let mut files = Vec::new();
    for entry in path.read_dir()? {
        let path = entry?.path();
        let metadata = path.metadata()?;
        if metadata.is_file() {
            files.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
    files.sort();
    let mut found = Vec::new();
    for (_, path) in files {
        match in_archive(&path) {
            Ok(Some(files)) => found.extend(files),
            // A file that cannot be read is reported when it is opened.
            Ok(None) | Err(_) => found.push(LogFile { path, entry: None }),
        }
    }
    Ok(found)
}

/// Returns the files of a zip archive; `None` if the file is no archive.
fn in_archive(path: &Path) -> io::Result<Option<Vec<LogFile>>> {
    // Opening a named pipe twice would end its writer.
    if !path.metadata()?.is_file() {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    let mut magic = Vec::new();
    file.by_ref()
        .take(zip::MAGIC.len() as u64)
        .read_to_end(&mut magic)?;
    if magic != zip::MAGIC {
        return Ok(None);
    }
    let entries = zip::entries(&mut file)?.into_iter();
    Ok(Some(
        entries
            .map(|entry| LogFile {
                path: path.to_owned(),
                entry: Some(entry),
            })
            .collect(),
    ))
}

/// Opens a log, or standard input if its path is `-`. `watch` may wrap the stream before it is
/// decompressed, for example to show progress.
///
/// # Errors
/// Returns the system's error, or an error if the content cannot be decompressed.
pub(super) fn open(
    log: &LogFile,
    watch: impl FnOnce(Box<dyn Read + Send>) -> Box<dyn Read + Send>,
) -> io::Result<Input> {
    if log.path == Path::new("-") {
        let source = lines(watch(standard_input()?))?;
        let name = "standard input".into();
        return Ok(Input {
            name,
            path: None,
            modified: SystemTime::now(),
            source,
        });
    }
    let modified = log
        .path
        .metadata()?
        .modified()
        .unwrap_or_else(|_| SystemTime::now());
    let source = match &log.entry {
        Some(entry) => zip::open(&log.path, entry, watch)?,
        None => watch(Box::new(File::open(&log.path)?)),
    };
    let path = log.path.canonicalize().ok().map(|path| {
        LogFile {
            path,
            ..log.clone()
        }
        .place()
    });
    Ok(Input {
        name: log.name(),
        path,
        modified,
        source: lines(source)?,
    })
}

/// Opens the file `path`, and the files that replace it, as a stream that ends only if `watch` ends
/// it. The stream reports [`io::ErrorKind::WouldBlock`] when there is nothing to read.
///
/// # Errors
/// Returns the system's error.
pub(super) fn follow(
    path: &Path,
    watch: impl FnOnce(Box<dyn Read + Send>) -> Box<dyn Read + Send>,
) -> io::Result<Input> {
    let source = watch(Box::new(FollowedFile::open(path)?));
    let log = LogFile {
        path: path.to_owned(),
        entry: None,
    };
    let path = path.canonicalize().ok();
    Ok(Input {
        name: log.name(),
        path,
        modified: SystemTime::now(),
        source,
    })
}

/// Wraps a stream in the decompressor and the converters that its first bytes call for, so that it
/// consists of lines in UTF-8.
fn lines(source: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let (magic, source) = with_magic(decompressed(source)?)?;
    let source = match Utf16Reader::of(&magic, Patient(source)) {
        Ok(converted) => Box::new(converted),
        Err(Patient(source)) => source,
    };
    let (magic, source) = with_magic(source)?;
    Ok(match ArrayReader::of(&magic, Patient(source)) {
        Ok(converted) => Box::new(converted),
        Err(Patient(source)) => source,
    })
}

/// Wraps a stream in the decompressor that its first bytes call for. File names do not matter,
/// since standard input may be compressed, too.
fn decompressed(source: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let (magic, whole) = with_magic(source)?;
    Ok(match magic[..] {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(Patient(whole))),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Box::new(MultiBzDecoder::new(Patient(whole))),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            let stream = Stream::new_stream_decoder(XZ_MEMORY, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(Patient(whole), stream))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(ZstdReader::new(Patient(whole))),
        _ => whole,
    })
}

/// Returns the first bytes of a stream, and the stream from its start.
fn with_magic(mut source: Box<dyn Read + Send>) -> io::Result<(Vec<u8>, Box<dyn Read + Send>)> {
    let mut magic = Vec::with_capacity(MAGIC);
    Patient(&mut source)
        .take(MAGIC as u64)
        .read_to_end(&mut magic)?;
    let whole = Box::new(io::Cursor::new(magic.clone()).chain(source));
    Ok((magic, whole))
}
