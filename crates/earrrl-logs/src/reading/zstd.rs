//! Decompresses Zstandard files, which may consist of several frames.

use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

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
mod tests {
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
