//! The names of files that figures are written to.

use std::path::PathBuf;

use earrrl_logs::plot;

/// Parses the name of a figure's file. A missing folder is reported at once, not after a whole log
/// has been read.
pub(super) fn file(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    if !plot::is_svg(&path) {
        return Err(plot::EXPECTED.into());
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(format!("no folder {}", folder.display()))
        }
        _ => Ok(path),
    }
}
