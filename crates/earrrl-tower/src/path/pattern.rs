//! Patterns of paths, as rules have them.

use std::str::FromStr;

use super::Paths;

/// A path with which the paths of requests are compared: `/login`, or with a `*` at its end, `/api/*`, which is `/api`
/// and all that is below it. All spellings that some server takes for the path match.
///
/// ```
/// use earrrl_tower::path::PathPattern;
/// let pattern: PathPattern = "/api/*".parse()?;
/// assert!(pattern.matches(b"/API//v1/%6cogin?next=a") && pattern.matches(b"/api"));
/// assert!(!pattern.matches(b"/apis"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// The normal form of the path, or of the text before the `*`.
    text: String,
    extent: Extent,
}

/// The paths that match a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// The path alone.
    Exact,
    /// The path and all paths below it.
    Below,
    /// All paths that begin with the text.
    Prefix,
}

impl FromStr for PathPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let paths = Paths::TOLERANT;
        let wrong = |expected: &str| Err(format!("`{}`: {expected}", text.escape_debug()));
        let (before, is_prefix) = match text.split_once('*') {
            None => (text, false),
            Some((before, "")) => (before, true),
            Some(_) => return wrong("`*` may stand at the end only"),
        };
        if !before.starts_with('/') {
            return wrong("expected a path that begins with `/`, as \"/login\"");
        }
        if text.contains(['?', '#']) {
            return wrong("a path ends before `?` and `#`; write them as %3F and %23");
        }
        let prefix = paths.normalize_prefix(before);
        let (text, extent) = match prefix.strip_suffix('/') {
            _ if !is_prefix => (paths.normalize_text(before), Extent::Exact),
            Some(path) => (path.to_owned(), Extent::Below),
            None => (prefix, Extent::Prefix),
        };
        Ok(Self { text, extent })
    }
}

impl PathPattern {
    /// Returns true if one of the interpretations of a request's target matches.
    pub fn matches(&self, target: &[u8]) -> bool {
        let others = Paths::TOLERANT.others(target);
        let normal = Paths::TOLERANT.normalize(target);
        let paths = others.with(&normal);
        paths.is_none_or(|mut paths| paths.any(|path| self.is(path)))
    }

    /// Returns true if a path in normal form matches.
    pub(crate) fn is(&self, path: &[u8]) -> bool {
        let rest = path.strip_prefix(self.text.as_bytes());
        rest.is_some_and(|rest| match self.extent {
            Extent::Exact => rest.is_empty(),
            Extent::Below => rest.is_empty() || rest.starts_with(b"/"),
            Extent::Prefix => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_all_spellings_of_its_paths() {
        let pattern = |text: &str| text.parse::<PathPattern>();
        for (text, target, expected) in [
            ("/login", "/login", true),
            ("/Login/", "//LOGIN?a=b", true),
            ("/login", "/x/..%2flogin", true),
            ("/login", "/logins", false),
            ("/api/*", "/api/v1", true),
            ("/api/*", "/API", true),
            ("/api/*", "/apis", false),
            ("/api*", "/apis", true),
            ("/*", "/any", true),
        ] {
            let found = pattern(text).unwrap().matches(target.as_bytes());
            assert_eq!(found, expected, "{text} {target}");
        }
        let long = format!("/{}", "%2f".repeat(5000));
        assert!(pattern("/login").unwrap().matches(long.as_bytes()));
        for wrong in ["", "login", "*", "/a*b", "/a?b", "/a#"] {
            assert!(pattern(wrong).is_err(), "{wrong}");
        }
    }
}
