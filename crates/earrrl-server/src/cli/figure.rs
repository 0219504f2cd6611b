//! Names of files that figures are drawn to.

use std::path::PathBuf;

/// A file to draw to; its ending says how.
pub(super) fn file(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "png") => match path.parent() {
            // Better told now than when the whole log has been read.
            Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                Err(format!("no folder {}", folder.display()))
            }
            _ => Ok(path),
        },
        _ => Err("expected a name that ends in .svg or .png".into()),
    }
}
