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
use super::zstd::ZstdReader;
use crate::line::Escaped;

/// The number of bytes at the start of a file that are read to identify its compression.
const MAGIC: usize = 6;

/// The most memory that decompressing an `.xz` file may use, in bytes; output of `xz -9` needs 65
/// MiB.
const XZ_MEMORY: u64 = 128 << 20;

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

/// Opens the file `path`, or standard input if it is `-`. `watch` may wrap the stream before it is
/// decompressed, for example to show progress.
///
/// # Errors
/// Returns the system's error, or an error if the path is a directory.
pub(super) fn open(
    path: &Path,
    watch: impl FnOnce(Box<dyn Read + Send>) -> Box<dyn Read + Send>,
) -> io::Result<Input> {
    if path == Path::new("-") {
        let source = decompressed(watch(standard_input()?))?;
        let name = "standard input".into();
        return Ok(Input { name, path: None, modified: SystemTime::now(), source });
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory, not a log"));
    }
    let modified = metadata.modified().unwrap_or_else(|_| SystemTime::now());
    let source = decompressed(watch(Box::new(file)))?;
    Ok(Input { name: name(path), path: path.canonicalize().ok(), modified, source })
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
    let path_found = path.canonicalize().ok();
    Ok(Input { name: name(path), path: path_found, modified: SystemTime::now(), source })
}

/// Returns the name of a file for messages.
fn name(path: &Path) -> String {
    Escaped(path.as_os_str().as_encoded_bytes()).to_string()
}

/// Wraps a stream in the decompressor that its first bytes call for. File names do not matter,
/// since standard input may be compressed, too.
fn decompressed(mut source: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let mut magic = Vec::with_capacity(MAGIC);
    Patient(&mut source).take(MAGIC as u64).read_to_end(&mut magic)?;
    let whole = io::Cursor::new(magic.clone()).chain(source);
    Ok(match magic[..] {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(Patient(whole))),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Box::new(MultiBzDecoder::new(Patient(whole))),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            let stream = Stream::new_stream_decoder(XZ_MEMORY, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(Patient(whole), stream))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(ZstdReader::new(Patient(whole))),
        _ => Box::new(whole),
    })
}
