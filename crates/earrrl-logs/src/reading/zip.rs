//! The files in a zip archive.
//!
//! Only the parts of the format are read that archives of logs use: no encryption, no archives or
//! files of 4 GiB and more, stored or deflated content.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::Path;

use flate2::read::DeflateDecoder;
use memchr::memmem;

use super::idle::Patient;

/// The bytes with which an archive starts.
pub(super) const MAGIC: &[u8] = b"PK\x03\x04";

const END: &[u8] = b"PK\x05\x06";
const ENTRY: &[u8] = b"PK\x01\x02";

/// The most bytes between the start of the end record and the end of the archive: the record
/// itself, and a comment.
const TAIL: u64 = 22 + u16::MAX as u64;

/// The most bytes of an archive's directory that are read.
const DIRECTORY: u64 = 64 << 20;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// A file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ZipEntry {
    /// The path in the archive.
    pub name: String,
    /// The position of the file's header in the archive.
    header: u64,
    /// The number of bytes that the content takes in the archive.
    len: u64,
    method: u16,
    is_encrypted: bool,
}

/// Returns the files in an archive, in the order of its directory.
///
/// # Errors
/// Returns the system's error, or an error if the archive is damaged or too large.
pub(super) fn entries(archive: &mut File) -> io::Result<Vec<ZipEntry>> {
    let size = archive.seek(SeekFrom::End(0))?;
    let tail = bytes(archive, size.saturating_sub(TAIL), size.min(TAIL))?;
    let end = &tail[memmem::rfind(&tail, END).ok_or_else(damaged)?..];
    let len = u64::from(number(end, 12, 4)?);
    let mut directory = &bytes(archive, number(end, 16, 4)?.into(), len)?[..];
    let mut entries = Vec::new();
    while directory.starts_with(ENTRY) {
        let name_len = number(directory, 28, 2)? as usize;
        let rest = name_len + (number(directory, 30, 2)? + number(directory, 32, 2)?) as usize;
        let name = directory.get(46..46 + name_len).ok_or_else(damaged)?;
        let entry = ZipEntry {
            name: String::from_utf8_lossy(name).into_owned(),
            header: number(directory, 42, 4)?.into(),
            len: number(directory, 20, 4)?.into(),
            method: number(directory, 10, 2)? as u16,
            is_encrypted: number(directory, 8, 2)? & 1 != 0,
        };
        if !name.ends_with(b"/") {
            entries.push(entry);
        }
        directory = directory.get(46 + rest..).ok_or_else(damaged)?;
    }
    Ok(entries)
}

/// Opens a file in an archive. `watch` may wrap its bytes before they are decompressed.
///
/// # Errors
/// Returns the system's error, or an error if the file cannot be decompressed.
pub(super) fn open(
    archive: &Path,
    entry: &ZipEntry,
    watch: impl FnOnce(Box<dyn Read + Send>) -> Box<dyn Read + Send>,
) -> io::Result<Box<dyn Read + Send>> {
    let mut archive = File::open(archive)?;
    let header = bytes(&mut archive, entry.header, 30)?;
    if !header.starts_with(MAGIC) {
        return Err(damaged());
    }
    let skipped = number(&header, 26, 2)? + number(&header, 28, 2)?;
    archive.seek_relative(skipped.into())?;
    let content = watch(Box::new(archive.take(entry.len)));
    match entry.method {
        _ if entry.is_encrypted => Err(unsupported("is encrypted")),
        STORED => Ok(content),
        DEFLATED => Ok(Box::new(DeflateDecoder::new(Patient(content)))),
        _ => Err(unsupported(
            "is neither stored nor deflated: unpack the archive",
        )),
    }
}

/// Reads `len` bytes at a position; the position after them becomes the current one.
fn bytes(archive: &mut File, start: u64, len: u64) -> io::Result<Vec<u8>> {
    if start == u64::from(u32::MAX) || len > DIRECTORY {
        return Err(unsupported(
            "is too large for a zip archive of logs: unpack it",
        ));
    }
    let mut bytes = Vec::new();
    archive.seek(SeekFrom::Start(start))?;
    let read = archive.take(len).read_to_end(&mut bytes)?;
    if read as u64 == len {
        Ok(bytes)
    } else {
        Err(damaged())
    }
}

/// Returns a number of `len` bytes, of which the lowest comes first.
fn number(bytes: &[u8], at: usize, len: usize) -> io::Result<u32> {
    let digits = bytes.get(at..at + len).ok_or_else(damaged)?;
    Ok(digits
        .iter()
        .rev()
        .fold(0, |number, &digit| number << 8 | u32::from(digit)))
}

fn damaged() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the zip archive is damaged or incomplete",
    )
}

fn unsupported(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, problem)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn entries_of(archive: &[u8]) -> io::Result<Vec<ZipEntry>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(archive).unwrap();
        entries(&mut file)
    }

    #[test]
    fn an_archive_that_is_cut_or_changed_is_an_error_or_empty() {
        let entry = [&b"PK\x01\x02"[..], &[0; 24], &[1, 0], &[0; 16], b"a"].concat();
        let end = [&b"PK\x05\x06"[..], &[0; 8], &[47, 0, 0, 0], &[0; 6]].concat();
        let archive = [entry, end].concat();
        assert_eq!(entries_of(&archive).unwrap()[0].name, "a");
        // The last two bytes are the length of the comment.
        for len in 0..archive.len() - 2 {
            assert!(entries_of(&archive[..len]).is_err(), "{len}");
        }
        for at in 0..archive.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = archive.clone();
                changed[at] = byte;
                let _ = entries_of(&changed);
            }
        }
    }
}
