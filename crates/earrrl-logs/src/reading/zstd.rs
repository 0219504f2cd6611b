//! Decompresses Zstandard files, which may consist of several frames.

use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

/// The approximate number of bytes that are decoded at a time.
const AHEAD: usize = 128 * 1024;

/// A Zstandard frame without content.
const EMPTY_FRAME: &[u8] = b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00";

/// Decompresses a sequence of frames. The decoder rejects windows above 100 MB, which bounds its
/// memory.
pub(super) struct ZstdReader<R: Read> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: Read> ZstdReader<R> {
    /// Creates a reader of `source`, which is at the start of a frame.
    pub(super) fn new(source: R) -> Self {
        let source = BufReader::with_capacity(AHEAD, source);
        let mut decoder = FrameDecoder::new();
        // The decoder does not check the window size of its first frame, so this is an empty one,
        // and the source's first frame is its second.
        let _ = decoder.reset(EMPTY_FRAME);
        Self { source, decoder, in_frame: false }
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
                    io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(damaged(error)),
            }
        }
        Ok(false)
    }
}

/// Returns the error for damaged data. The decoder's own messages differ for each kind of damage
/// and may have several lines.
fn damaged(_: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the compressed data is damaged or incomplete")
}

impl<R: Read> Read for ZstdReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        use ruzstd::decoding::BlockDecodingStrategy::UptoBytes;

        loop {
            if !self.in_frame && !self.start()? {
                return Ok(0);
            }
            self.in_frame = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder.decode_blocks(&mut self.source, UptoBytes(AHEAD)).map_err(damaged)?;
            }
            let read = self.decoder.read(out)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            self.in_frame = false;
            let expected = self.decoder.get_checksum_from_data();
            if expected.is_some() && expected != self.decoder.get_calculated_checksum() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum is wrong"));
            }
        }
    }
}
