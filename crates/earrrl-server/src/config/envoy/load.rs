//! The loading of files and folders of descriptors: either all files are valid, or none is used.
//!
//! Descriptors also come from a control plane, which sends what a file of envoyproxy/ratelimit could have too. A message
//! is converted to the text of such a file, so that the same code validates both.

use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;

use super::file;
use super::file::DomainConfig;
use super::tree::Tree;
use crate::config::yaml::Position;
use crate::config::{ConfigError, read_bytes};
use crate::protobuf::discovery::RateLimitConfig;

/// The largest number of files that are loaded.
const MAX_FILES: usize = 10_000;

/// The result of loading files of descriptors.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The tree of all descriptors.
    pub tree: Tree,
    /// The mistakes that do not make a file invalid, each with its file and place.
    pub warnings: Vec<String>,
}

/// Loads the descriptors of files, and of the `.yaml` and `.yml` files in folders.
///
/// # Errors
/// Returns the mistakes of the first invalid file.
pub fn load(paths: &[PathBuf], merge_domains: bool) -> Result<Loaded, ConfigError> {
    let mut warnings = Vec::new();
    let mut domains: Vec<DomainConfig> = Vec::new();
    let files = files(paths)?;
    for folder in paths.iter().filter(|path| path.is_dir()) {
        if !files.iter().any(|file| file.parent() == Some(folder)) {
            let name = folder.display();
            warnings.push(format!(
                "{name}: no .yaml or .yml file that can be read; folders inside it are not read"
            ));
        }
    }
    for path in files {
        let name = path.display().to_string();
        let bytes = read_bytes(&path).map_err(|error| unreadable(&path, &error))?;
        let text = String::from_utf8(bytes).map_err(|error| no_text(&name, &error))?;
        domains.push(file::parse(&text, &name, &mut warnings)?);
    }
    Ok(Loaded {
        tree: Tree::new(&domains, merge_domains)?,
        warnings,
    })
}

/// Returns the files of `paths`; those in a folder are sorted by name. Hidden entries of folders
/// are left out: in a ConfigMap that Kubernetes mounts, they are second copies of the files.
///
/// # Errors
/// Returns an error if a path does not exist, or an entry of a folder has the name of a file and is none.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ConfigError> {
    let mut files = Vec::new();
    for path in paths {
        let failed = |error| unreadable(path, &error);
        if !std::fs::metadata(path).map_err(failed)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(failed)?;
        let mut inside: Vec<_> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| is_config(path))
            .collect();
        inside.sort();
        // A file that is not read would take its limits out of force.
        if let Some(other) = inside.iter().find(|path| !path.is_file()) {
            return Err(unreadable(other, &"expected a file, or a link to one"));
        }
        files.append(&mut inside);
    }
    if files.len() > MAX_FILES {
        let problem = format!("{} files; at most {MAX_FILES}", files.len());
        return Err(unreadable(&files[MAX_FILES], &problem));
    }
    Ok(files)
}

fn is_config(path: &Path) -> bool {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy())
        .unwrap_or_default();
    !name.starts_with('.') && (name.ends_with(".yaml") || name.ends_with(".yml"))
}

/// Creates the error for a file that is not UTF-8, with the place of the first invalid byte.
fn no_text(name: &str, error: &FromUtf8Error) -> ConfigError {
    let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let good = String::from_utf8_lossy(good);
    let last = good.rsplit('\n').next().unwrap_or_default();
    let line = good.matches('\n').count() + 1;
    let column = last.chars().count() + 1;
    let problem = Position { line, column }.problem("expected UTF-8".to_owned());
    ConfigError {
        name: name.to_owned(),
        problems: vec![problem],
    }
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::unreadable(&path.display().to_string(), why.to_string())
}

/// The type URL of the resources that are requested from the control plane.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Validates one resource, which holds the descriptors of one domain.
///
/// # Errors
/// Returns all mistakes in the resource, without places, since it has no file.
pub fn domain(config: &RateLimitConfig) -> Result<DomainConfig, ConfigError> {
    let name = format!("xds {}", config.name);
    // JSON is YAML, too.
    let text = serde_json::to_string_pretty(config)
        .map_err(|error| ConfigError::unreadable(&name, error.to_string()))?;
    let parsed = file::parse(&text, &name, &mut Vec::new());
    parsed.map_err(|mut error| {
        for problem in &mut error.problems {
            (problem.line, problem.column) = (None, None);
        }
        error
    })
}
