//! The Lua scripts, composed of the parts in the algorithms' files.
//!
//! An algorithm's arithmetic is written once, in `algorithm/<name>.lua`, and its parts are inserted into the slots
//! of frames (`--[[ part ]]`). There are frames for one algorithm, without closures, each of which costs Redis
//! 0.1 µs, and frames with a function for each algorithm of a set. A script is composed when it is first used.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::algorithm::{AlgorithmKind, KINDS};

/// The parts of an algorithm's file, in the order in which they are inserted: some contain slots for later ones.
const PARTS: [&str; 11] = [
    "parameters",
    "once",
    "judge",
    "correct",
    "units",
    "charge",
    "more",
    "answer",
    "details",
    "held",
    "adjust",
];
/// The parts that only calls for several units have.
const OF_UNITS: [&str; 3] = ["correct", "units", "more"];
/// The verdicts, each at the position that is its digit.
const VERDICTS: [&str; 5] = ["ALLOWED", "HELD", "OVER", "EXPIRED", "FAILED"];
/// The number of frames.
const FRAMES: usize = Frame::Renew as usize + 1;
/// The number of sets of algorithms, one bit each.
const SETS: usize = 1 << KINDS.len();
/// The command with which a part reads its record.
const GET: &str = "call('GET', key)";

/// The purposes of scripts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frame {
    /// Decides a request under one rule.
    Single,
    /// Decides or reserves a request under several rules.
    Several,
    /// Decides several requests, each under one rule.
    Batch,
    /// Applies what a node has counted by itself.
    Add,
    /// Reserves a request under one rule.
    HoldOne,
    /// Commits a reservation under one rule or several.
    CommitOne,
    Commit,
    /// Prolongs a reservation, and moves the places that it has under concurrent.
    Renew,
}

/// All scripts that the engine calls, by frame and by set of algorithms.
pub(crate) struct Scripts(Box<[OnceLock<Script>]>);

impl Scripts {
    pub(crate) fn new() -> Self {
        Self((0..FRAMES * SETS).map(|_| OnceLock::new()).collect())
    }

    /// Returns the script of a frame for these algorithms.
    pub(crate) fn get(
        &self,
        frame: Frame,
        kinds: impl IntoIterator<Item = AlgorithmKind>,
    ) -> &Script {
        let set = kinds
            .into_iter()
            .fold(0, |set, kind| set | 1 << kind as usize);
        self.0[frame as usize * SETS + set].get_or_init(|| Script::new(&frame.compose(set)))
    }

    /// Notes that there is a new connection, perhaps to a server without the scripts.
    pub(crate) fn forget(&self) {
        let composed = self.0.iter().filter_map(OnceLock::get);
        composed.for_each(|script| script.is_sent.store(false, Ordering::Relaxed));
    }
}

/// A script, and its SHA-1 hash, by which Redis knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) code: String,
    pub(crate) hash: String,
    /// True if Redis was sent the text over the present connection.
    is_sent: AtomicBool,
}

impl Script {
    fn new(code: &str) -> Self {
        Self {
            code: code.to_owned(),
            hash: redis::Script::new(code).get_hash().to_owned(),
            is_sent: AtomicBool::new(false),
        }
    }

    /// Notes that Redis is sent the text. Returns false if it was sent before.
    pub(super) fn is_first(&self) -> bool {
        !self.is_sent.swap(true, Ordering::Relaxed)
    }
}

impl AlgorithmKind {
    /// Returns the text under the line `-- part` in the algorithm's file, up to the next part.
    fn part(self, part: &str) -> String {
        let header = format!("\n-- {part}\n");
        let rest = self.text().split_once(&header).map_or("", |(_, rest)| rest);
        let ends = PARTS
            .iter()
            .filter_map(|next| rest.find(&format!("\n-- {next}\n")));
        strip(&rest[..ends.min().unwrap_or(rest.len())])
    }
}

impl Frame {
    fn compose(self, set: usize) -> String {
        let kinds = KINDS
            .iter()
            .copied()
            .filter(|kind| set >> *kind as usize & 1 == 1);
        let first = kinds.clone().next().unwrap_or(AlgorithmKind::Concurrent);
        let each = |one: fn(AlgorithmKind) -> String| kinds.clone().map(one).collect::<String>();
        let corrected = |kind| filled(include_str!("../scripts/commit_algorithm.lua"), kind);
        let text = match self {
            Self::Single => single(first),
            Self::Add => filled(include_str!("../scripts/add.lua"), first),
            Self::HoldOne => {
                let text = filled(include_str!("../scripts/hold_one.lua"), first);
                fetching(text, first, &["key", "hold_key", "given_key"])
            }
            Self::CommitOne => {
                let text = filled(include_str!("../scripts/commit_one.lua"), first);
                fetching(text, first, &["KEYS[1]", "key", "given_key"])
            }
            Self::Renew => filled(include_str!("../scripts/renew.lua"), first),
            Self::Several => with_holds(include_str!("../scripts/several.lua"))
                .replace("--[[ algorithms ]]\n", &each(judged)),
            Self::Batch => strip(include_str!("../scripts/batch.lua"))
                .replace("--[[ algorithms ]]\n", &each(decided)),
            Self::Commit => with_holds(include_str!("../scripts/commit.lua"))
                .replace("--[[ algorithms ]]\n", &each(corrected)),
        };
        let tally = match kinds.clone().any(AlgorithmKind::is_tally) {
            true => include_str!("../algorithm/tally.lua"),
            false => "",
        };
        let places = match text.contains("next_place(") {
            true => include_str!("../algorithm/places.lua"),
            false => "",
        };
        let prelude = [include_str!("../scripts/prelude.lua"), tally, places].map(strip);
        let text = prelude.concat() + &text;
        match self {
            // The prelude uses the name `unpack` for another function.
            Self::Batch => {
                let text = format!("local values = table.unpack or unpack\n{text}");
                with_verdicts(&with_local_math(&text), "")
            }
            _ => with_verdicts(&text, "'"),
        }
    }
}

/// Composes the script of one rule. A single `unpack` reads the call's fields and the rule's
/// parameters.
fn single(kind: AlgorithmKind) -> String {
    let whole = kind
        .part("parameters")
        .replacen("local ", "local now, flags, latest, entry, place, ", 1)
        .replacen("unpack('<", "unpack('<dBdc4Bc0", 1)
        .replacen("args, at", "ARGV[1]", 1);
    let frame = include_str!("../scripts/single.lua");
    filled(&frame.replace("--[[ parameters ]]", &whole), kind)
}

/// Returns the function of several.lua that judges a charge by one algorithm. Its charge returns the details for a
/// reservation.
fn judged(kind: AlgorithmKind) -> String {
    let text = "judge[--[[ number ]]] = function(key, now, args, at, flags, given_key)\nlocal verdict, state\n\
         --[[ parameters ]]\n--[[ once ]]\n--[[ judge ]]\nreturn verdict, function()\n--[[ charge ]]\nif holds then\n\
         local details = ''\n--[[ details ]]\nreturn pack('<I4', born) .. details\nend\nend, \
         function()\n--[[ answer ]]\nreturn state\nend\nend\n";
    filled(text, kind)
}

/// Returns the function of batch.lua that decides requests by one algorithm. Whole records are read together.
fn decided(kind: AlgorithmKind) -> String {
    let text = with_parts(include_str!("../scripts/batch_algorithm.lua"), kind, true);
    let records = match text.contains(GET) {
        true => "redis.pcall('MGET', values(keys, done + 1, last))",
        false => "{}",
    };
    text.replace(GET, &format!("(found or {GET})"))
        .replace("--[[ records ]]", records)
}

/// Replaces the reads of these keys by one that reads them together. What commits give back is read
/// only under a bucket, and a tally is not read whole. A record that is missing, or that the user may
/// not read that way, is read by itself, which also finds keys of another type.
fn fetching(frame: String, kind: AlgorithmKind, keys: &[&str]) -> String {
    let is_read = |key: &&&str| frame.contains(&format!("call('GET', {key})"));
    let keys: Vec<&str> = keys.iter().filter(is_read).copied().collect();
    if kind.is_tally() || keys.len() < 2 {
        return frame.replace("--[[ fetch ]]\n", "");
    }
    let fetch = format!("local found = redis.pcall('MGET', {})\n", keys.join(", "));
    let read = |frame: String, (place, key): (usize, &&str)| {
        let get = format!("call('GET', {key})");
        frame.replace(&get, &format!("(found[{}] or {get})", place + 1))
    };
    keys.iter()
        .enumerate()
        .fold(frame, read)
        .replace("--[[ fetch ]]\n", &fetch)
}

/// Returns a script without comments, with the parts about reservations inserted.
fn with_holds(text: &str) -> String {
    let parts = [
        ("known", include_str!("../scripts/known.lua")),
        ("store", include_str!("../scripts/hold.lua")),
        ("hold", include_str!("../scripts/held.lua")),
    ];
    parts.iter().fold(strip(text), |text, (name, part)| {
        text.replace(&format!("--[[ {name} ]]\n"), &strip(part))
    })
}

/// Returns a text with the parts and the number of an algorithm inserted, for requests of one unit.
fn filled(text: &str, kind: AlgorithmKind) -> String {
    with_parts(text, kind, false)
        .replace(" * k)", ")")
        .replace(" * k,", ",")
}

fn with_parts(text: &str, kind: AlgorithmKind, of_units: bool) -> String {
    // The answer of a tally after a commit is that of a peek of one unit.
    let unit = match kind.is_tally() {
        true => "cost = 1000000000\n",
        false => "",
    };
    let text = with_holds(text)
        .replace("--[[ number ]]", &(kind as u8).to_string())
        .replace("--[[ unit ]]\n", unit);
    PARTS.iter().fold(text, |text, name| {
        let part = match of_units || !OF_UNITS.contains(name) {
            true => kind.part(name),
            false => String::new(),
        };
        text.replace(&format!("--[[ {name} ]]\n"), &part)
    })
}

/// Replaces the names of verdicts by their digits, each enclosed in `quote`.
fn with_verdicts(text: &str, quote: &str) -> String {
    let digits = VERDICTS.iter().zip(0..);
    digits.fold(text.to_owned(), |text, (name, digit)| {
        text.replace(name, &format!("{quote}{digit}{quote}"))
    })
}

/// Makes the functions of `math` local, since a look-up of a global one costs Redis four instructions
/// of Lua each time.
fn with_local_math(text: &str) -> String {
    let uses = text.split("math.").skip(1);
    let names: BTreeSet<_> = uses
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric()).next())
        .collect();
    let locals = names
        .iter()
        .map(|name| format!("local math_{name} = math.{name}\n"));
    locals.collect::<String>() + &text.replace("math.", "math_")
}

/// Removes comments and empty lines, since Redis keeps a copy of every script.
fn strip(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let is_code =
        |line: &&str| !line.is_empty() && (!line.starts_with("--") || line.starts_with("--[["));
    lines
        .filter(is_code)
        .fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The frames that take every set of algorithms.
    const ALL: [Frame; 7] = [
        Frame::Single,
        Frame::Several,
        Frame::Batch,
        Frame::Add,
        Frame::HoldOne,
        Frame::CommitOne,
        Frame::Commit,
    ];

    #[test]
    fn every_algorithm_has_its_parts() {
        for &kind in KINDS {
            for part in ["parameters", "judge", "charge", "adjust"] {
                assert!(!kind.part(part).is_empty(), "{kind:?}: {part}");
            }
            assert_eq!(
                kind.text().contains("read(key, now)"),
                kind.is_tally(),
                "{kind:?}"
            );
        }
    }

    /// Returns every script for one algorithm, and those for all.
    fn all() -> Vec<String> {
        let of_one = (0..KINDS.len()).map(|bit| 1 << bit).chain([SETS - 1]);
        let renew = Frame::Renew.compose(1 << AlgorithmKind::Concurrent as usize);
        let sets = of_one.flat_map(|set| ALL.map(|frame| frame.compose(set)));
        sets.chain([renew]).collect()
    }

    #[test]
    fn frames_are_filled() {
        for text in all() {
            assert!(!text.contains("--"), "{text}");
            assert!(!VERDICTS.iter().any(|name| text.contains(name)), "{text}");
        }
    }

    /// Returns the words of a script that may be names of variables: outside of texts, and not after a dot.
    fn names(text: &str) -> Vec<String> {
        let mut names = Vec::new();
        for (place, code) in text.split('\'').enumerate() {
            if place % 2 == 1 {
                continue;
            }
            let mut before = ' ';
            for word in code.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                let name = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                if before != '.' && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                {
                    names.push(name.to_owned());
                }
                before = word.chars().last().unwrap_or(' ');
            }
        }
        names
    }

    /// The parts of an algorithm use variables that the frames have declared. A misspelt one would be an error of
    /// Redis in the first call that comes there.
    #[test]
    fn every_name_is_declared() {
        const KNOWN: &str = "and break do else elseif end false for function if in local nil not or return repeat \
            then true until while redis struct math table string unpack pcall ipairs type assert KEYS ARGV";
        // The keys of the tables that are tallies and parts of reservations.
        const FIELDS: &str = "born oldest last sum newest cost shift there kept from";
        for text in all() {
            let known = KNOWN.split_whitespace().chain(FIELDS.split_whitespace());
            let mut declared: HashSet<&str> = known.collect();
            for line in text.lines() {
                for lead in ["local function ", "local ", "for ", "function"] {
                    for (_, rest) in line
                        .match_indices(lead)
                        .map(|(at, _)| line[at..].split_at(lead.len()))
                    {
                        let end = rest.find([')', '=']).unwrap_or(rest.len());
                        let rest = rest[..end].split(" in ").next().unwrap();
                        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                        declared
                            .extend(rest.split(|c| !is_name(c)).filter(|name| !name.is_empty()));
                    }
                }
            }
            for name in names(&text) {
                assert!(declared.contains(name.as_str()), "{name} in {text}");
            }
        }
    }
}
