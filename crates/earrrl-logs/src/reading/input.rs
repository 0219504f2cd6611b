//! Opens logs: files or standard input, compressed or not.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

use super::follow::FollowedFile;
use super::follow::{Patient, standard_input};
use crate::line::Escaped;

/// The number of bytes at the start of a file by which its compression is found.
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

/// Returns a path as text, with control characters escaped.
pub(super) fn name_of(path: &Path) -> String {
    Escaped(path.as_os_str().as_encoded_bytes()).to_string()
}

/// Returns the logs that a path stands for: the path itself, or the files of a directory in the order of
/// their last changes, without hidden ones such as `.swp` and without those of its subdirectories.
///
/// # Errors
/// Returns the system's error, or an error if a directory has no files.
pub(super) fn logs(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path == Path::new("-") || !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in path.read_dir()? {
        let path = entry?.path();
        let metadata = path.metadata()?;
        let name = path.file_name().unwrap_or_default();
        if metadata.is_file() && !name.as_encoded_bytes().starts_with(b".") {
            files.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
    if files.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "has no files"));
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Opens a log, or standard input if its path is `-`. `watch` may wrap the stream before it is
/// decompressed, for example to show progress.
///
/// # Errors
/// Returns the system's error, or an error if the content cannot be decompressed.
pub(super) fn open(
    path: &Path,
    watch: impl FnOnce(Box<dyn Read + Send>) -> Box<dyn Read + Send>,
) -> io::Result<Input> {
    if path == Path::new("-") {
        return Ok(Input {
            name: "standard input".into(),
            path: None,
            modified: SystemTime::now(),
            source: decompressed(watch(standard_input()?))?,
        });
    }
    let modified = path.metadata()?.modified();
    Ok(Input {
        name: name_of(path),
        path: path.canonicalize().ok(),
        modified: modified.unwrap_or_else(|_| SystemTime::now()),
        source: decompressed(watch(Box::new(File::open(path)?)))?,
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
    Ok(Input {
        name: name_of(path),
        path: path.canonicalize().ok(),
        modified: SystemTime::now(),
        source,
    })
}

/// Wraps a stream in the decompressor that its first bytes call for. File names do not matter,
/// since standard input may be compressed, too.
///
/// # Errors
/// Returns the system's error, or the command that makes lines of text of an archive or of UTF-16.
fn decompressed(mut source: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let mut magic = Vec::with_capacity(MAGIC);
    Patient(&mut source)
        .take(MAGIC as u64)
        .read_to_end(&mut magic)?;
    let whole = Box::new(io::Cursor::new(magic.clone()).chain(source));
    Ok(match magic[..] {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(Patient(whole))),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Box::new(MultiBzDecoder::new(Patient(whole))),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            let stream = Stream::new_stream_decoder(XZ_MEMORY, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(Patient(whole), stream))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(ZstdReader::new(Patient(whole))),
        [b'P', b'K', 3, 4, ..] => {
            return Err(unsupported("is a zip archive: read `unzip -p FILE`"));
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            return Err(unsupported(
                "is UTF-16: read `iconv -f UTF-16 -t UTF-8 FILE`",
            ));
        }
        _ => whole,
    })
}

fn unsupported(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, problem)
}

// Decompresses Zstandard files, which may consist of several frames.

/// The approximate number of bytes that are decoded at a time.
const AHEAD: usize = 128 * 1024;

/// A Zstandard frame without content.
const EMPTY_FRAME: &[u8] = b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00";

/// The last block of a frame, without content, and the bytes of a checksum.
const LAST_BLOCK: &[u8] = b"\x01\x00\x00\x00\x00\x00\x00";

/// Decompresses a sequence of frames. The decoder rejects windows above 100 MB, which bounds its
/// memory.
pub(super) struct ZstdReader<R: Read> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    in_frame: bool,
    /// The error behind what was decoded, which is returned once all of that has been read.
    error: Option<io::Error>,
}

impl<R: Read> ZstdReader<R> {
    /// Creates a reader of `source`, which is at the start of a frame.
    pub(super) fn new(source: R) -> Self {
        let source = BufReader::with_capacity(AHEAD, source);
        let mut decoder = FrameDecoder::new();
        // The decoder does not check the window size of its first frame, so this is an empty one,
        // and the source's first frame is its second.
        let _ = decoder.reset(EMPTY_FRAME);
        Self {
            source,
            decoder,
            in_frame: false,
            error: None,
        }
    }

    /// Starts the next frame. Returns false at the end of the file.
    fn start(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(
                        &mut self.source.by_ref().take(length.into()),
                        &mut io::sink(),
                    )?;
                }
                Err(error) => return Err(damaged(error)),
            }
        }
        Ok(false)
    }

    /// Decodes blocks until there is something to read. What was decoded before an error can be read
    /// before it is returned.
    fn decode(&mut self) {
        use ruzstd::decoding::BlockDecodingStrategy::UptoBytes;

        while self.error.is_none() && self.decoder.can_collect() == 0 && !self.decoder.is_finished()
        {
            let decoded = self
                .decoder
                .decode_blocks(&mut self.source, UptoBytes(AHEAD));
            self.error = decoded.err().map(damaged);
            if self.error.is_some() {
                // The decoder holds back a window of its output until the frame ends.
                let _ = self.decoder.decode_blocks(LAST_BLOCK, UptoBytes(AHEAD));
            }
        }
    }
}

/// Returns the error for damaged data. The decoder's own messages differ for each kind of damage
/// and may have several lines.
fn damaged(_: FrameDecoderError) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the compressed data is damaged or incomplete",
    )
}

impl<R: Read> Read for ZstdReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.start()? {
                return Ok(0);
            }
            self.in_frame = true;
            self.decode();
            let read = self.decoder.read(out)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            self.in_frame = false;
            let expected = self.decoder.get_checksum_from_data();
            if expected.is_some() && expected != self.decoder.get_calculated_checksum() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the checksum is wrong",
                ));
            }
        }
    }
}

#[cfg(test)]
mod zstd_tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    #[test]
    fn what_precedes_the_damage_is_read() {
        let text: Vec<u8> = (0..50_000)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .collect();
        let whole = compress_to_vec(&text[..], CompressionLevel::Fastest);
        let mut damaged = whole.clone();
        damaged[whole.len() / 2..].fill(0xff);
        for source in [
            &whole[..whole.len() / 2],
            &whole[..whole.len() - 1],
            &damaged,
        ] {
            let mut out = Vec::new();
            let error = ZstdReader::new(source).read_to_end(&mut out).unwrap_err();
            assert!(error.to_string().contains("damaged"), "{error}");
            assert!(out.len() > text.len() / 4 && text.starts_with(&out[..text.len() / 4]));
        }
        let mut out = Vec::new();
        ZstdReader::new(&whole[..]).read_to_end(&mut out).unwrap();
        assert!(out == text);
    }
}
