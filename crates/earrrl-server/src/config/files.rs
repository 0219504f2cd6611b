//! The files that a configuration consists of or names.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The size of the largest configuration file, in bytes.
pub const MAX_FILE_LEN: u64 = 16 * 1024 * 1024;
/// The prefix of a path to a credential of a systemd unit.
const CREDENTIALS: &str = "$CREDENTIALS_DIRECTORY/";

/// Returns the path of a file, in which a prefix `$CREDENTIALS_DIRECTORY/` is replaced by the
/// environment variable's value.
///
/// # Errors
/// Returns an error if the prefix is used and the process has no such environment variable.
pub(super) fn path_of(text: &str) -> io::Result<PathBuf> {
    let Some(name) = text.strip_prefix(CREDENTIALS) else {
        return Ok(text.into());
    };
    let none = || io::Error::other("CREDENTIALS_DIRECTORY is not set: LoadCredential= sets it");
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY").ok_or_else(none)?;
    Ok(Path::new(&folder).join(name))
}

/// Reads the text of a file that the configuration names.
///
/// # Errors
/// Returns the errors of [`path_of`] and [`read`].
pub(super) fn text_of(path: &str) -> io::Result<String> {
    read(&path_of(path)?)
}

/// Reads a file as UTF-8 text.
///
/// # Errors
/// Returns the errors of [`read_bytes`], and an error if the file is not UTF-8.
pub(super) fn read(path: &Path) -> io::Result<String> {
    String::from_utf8(read_bytes(path)?).map_err(|_| io::Error::other("expected UTF-8"))
}

/// Reads the bytes of a file of bounded size.
///
/// # Errors
/// Returns an error if the file cannot be read, or is larger than a configuration may be.
pub fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?
        .take(MAX_FILE_LEN + 1)
        .read_to_end(&mut bytes)?;
    if read as u64 > MAX_FILE_LEN {
        return Err(io::Error::other(format!(
            "longer than {MAX_FILE_LEN} bytes"
        )));
    }
    Ok(bytes)
}
