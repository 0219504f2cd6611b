//! Streams that have nothing to read at times: they report [`io::ErrorKind::WouldBlock`], so that
//! output can be flushed and Ctrl-C be noticed.

use std::io::{self, Read};
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
