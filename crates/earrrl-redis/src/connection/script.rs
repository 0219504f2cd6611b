//! The Lua scripts, composed of the parts in the algorithms' files.
//!
//! An algorithm's arithmetic is written once, in `algorithm/<name>.lua`, and inserted into
//! frames: a request under one rule (without closures, each of which costs Redis 0.1 µs), several such
//! requests, a request under several rules, a contribution of a node, and a reservation and its commit
//! under one rule and under several.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::algorithm::{AlgorithmKind, KINDS};

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
        let code = with_verdicts(code, "'");
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self {
            code,
            hash,
            is_sent: AtomicBool::new(false),
        }
    }

    /// Notes that Redis is sent the text. Returns false if it was sent before.
    pub(crate) fn is_first(&self) -> bool {
        !self.is_sent.swap(true, Ordering::Relaxed)
    }

    /// Notes that there is a new connection, perhaps to another server.
    fn forget(&self) {
        self.is_sent.store(false, Ordering::Relaxed);
    }
}

impl AlgorithmKind {
    /// Returns true if the algorithm's record is a tally, which needs `tally.lua`. Only tallies
    /// report a summary.
    fn is_tally(self) -> bool {
        !self.part("answer").is_empty()
    }

    /// Returns the text under the line `-- part` in the algorithm's file, up to the next part.
    fn part(self, part: &str) -> &'static str {
        let header = format!("\n-- {part}\n");
        let rest = self.text().split_once(&header).map_or("", |(_, rest)| rest);
        let ends = PARTS
            .iter()
            .filter_map(|next| rest.find(&format!("\n-- {next}\n")));
        &rest[..ends.min().unwrap_or(rest.len())]
    }
}

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

/// All scripts that the engine calls.
pub(crate) struct Scripts {
    single: Vec<Script>,
    add: Vec<Script>,
    /// The scripts for several rules, by the set of their algorithms (one bit each). Each is
    /// composed when it is first used.
    several: Vec<OnceLock<Script>>,
    /// The scripts for several requests under one rule each, by the set of their algorithms.
    batch: Vec<OnceLock<Script>>,
    /// The scripts that reserve under one rule, and those that commit such a reservation.
    hold_one: Vec<Script>,
    commit_one: Vec<Script>,
    /// The scripts that reserve under several rules, by the set of their algorithms.
    hold: Vec<OnceLock<Script>>,
    /// The scripts that commit reservations under several rules, by the set of their algorithms.
    commit: Vec<OnceLock<Script>>,
    /// Prolongs a reservation.
    pub(crate) renew: Script,
    /// Advances the time of a throttle's key.
    pub(crate) throttle: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let each = |frame: fn(AlgorithmKind) -> String| {
            KINDS
                .iter()
                .map(|kind| Script::new(&frame(*kind)))
                .collect()
        };
        let sets = || (0..1 << KINDS.len()).map(|_| Default::default()).collect();
        Self {
            single: each(single),
            add: each(|kind| in_frame(include_str!("../scripts/add.lua"), kind)),
            several: sets(),
            batch: sets(),
            hold_one: each(hold_one),
            commit_one: each(commit_one),
            hold: sets(),
            commit: sets(),
            renew: Script::new(&renew()),
            throttle: Script::new(&strip(include_str!("../scripts/throttle.lua"))),
        }
    }

    /// Returns the scripts that every engine calls, which are all but those for several algorithms.
    pub(crate) fn common(&self) -> impl Iterator<Item = &Script> {
        let batches = KINDS.iter().map(|kind| self.batch([*kind].into_iter()));
        let of_limits = self.single.iter().chain(&self.add).chain(batches);
        of_limits.chain([&self.throttle])
    }

    /// Notes that there is a new connection, perhaps to a server without the scripts.
    pub(crate) fn forget(&self) {
        self.common().for_each(Script::forget);
        self.hold_one
            .iter()
            .chain(&self.commit_one)
            .chain([&self.renew])
            .for_each(Script::forget);
        let composed = self
            .several
            .iter()
            .chain(&self.batch)
            .chain(&self.hold)
            .chain(&self.commit);
        composed.filter_map(OnceLock::get).for_each(Script::forget);
    }

    /// Returns the script that decides a request under one rule.
    pub(crate) fn single(&self, kind: AlgorithmKind) -> &Script {
        &self.single[kind as usize]
    }

    /// Returns the script that applies a node's changes.
    pub(crate) fn add(&self, kind: AlgorithmKind) -> &Script {
        &self.add[kind as usize]
    }

    /// Returns the script that decides a request under several rules with these algorithms.
    pub(crate) fn several(&self, kinds: impl Iterator<Item = AlgorithmKind>) -> &Script {
        let set = set_of(kinds);
        self.several[set].get_or_init(|| Script::new(&several(set)))
    }

    /// Returns the script that reserves under rules with these algorithms, one for each charge.
    pub(crate) fn hold(&self, kinds: &[AlgorithmKind]) -> &Script {
        if let [kind] = kinds {
            return &self.hold_one[*kind as usize];
        }
        let set = set_of(kinds.iter().copied());
        self.hold[set].get_or_init(|| Script::new(&hold(set)))
    }

    /// Returns the script that commits a reservation under rules with these algorithms, one for each
    /// charge.
    pub(crate) fn commit(&self, kinds: &[AlgorithmKind]) -> &Script {
        if let [kind] = kinds {
            return &self.commit_one[*kind as usize];
        }
        let set = set_of(kinds.iter().copied());
        self.commit[set].get_or_init(|| Script::new(&commit(set)))
    }

    /// Returns the script that decides several requests, each under one rule, with these algorithms.
    pub(crate) fn batch(&self, kinds: impl Iterator<Item = AlgorithmKind>) -> &Script {
        let set = set_of(kinds);
        self.batch[set].get_or_init(|| Script::new(&batch(set)))
    }
}

/// Returns a set of algorithms, one bit each.
fn set_of(kinds: impl Iterator<Item = AlgorithmKind>) -> usize {
    kinds.fold(0, |set, kind| set | 1 << kind as usize)
}

/// Returns the algorithms of a set.
fn kinds_of(set: usize) -> impl Iterator<Item = AlgorithmKind> + Clone {
    KINDS
        .iter()
        .copied()
        .filter(move |kind| set >> *kind as usize & 1 == 1)
}

/// Returns the beginning of a script for these algorithms.
fn prelude_of(set: usize) -> String {
    prelude(kinds_of(set).any(AlgorithmKind::is_tally))
}

fn prelude(tally: bool) -> String {
    let tally = if tally {
        include_str!("../algorithm/tally.lua")
    } else {
        ""
    };
    strip(&format!(
        "{}{tally}",
        include_str!("../scripts/prelude.lua")
    ))
}

fn in_frame(frame: &str, kind: AlgorithmKind) -> String {
    prelude(kind.is_tally()) + &filled(frame, kind)
}

/// Composes the script of one rule. A single `unpack` reads the call's fields and the rule's
/// parameters.
fn single(kind: AlgorithmKind) -> String {
    let whole = strip(kind.part("parameters"))
        .replacen("local ", "local now, flags, latest, entry, place, ", 1)
        .replacen("unpack('<", "unpack('<dBdc4Bc0", 1)
        .replacen("args, at", "ARGV[1]", 1);
    in_frame(
        &include_str!("../scripts/single.lua").replace("--[[ parameters ]]", &whole),
        kind,
    )
}

/// Composes the script of several rules.
fn several(set: usize) -> String {
    let algorithms: String = kinds_of(set).map(|kind| judged(kind, "")).collect();
    let frame = strip(include_str!("../scripts/several.lua"));
    prelude_of(set)
        + &frame
            .replace("--[[ algorithms ]]", &algorithms)
            .replace("--[[ hold ]]\n", "")
}

/// Returns the function of several.lua that judges a charge by one algorithm, and ends the charge with
/// the text `charged`.
fn judged(kind: AlgorithmKind, charged: &str) -> String {
    let [parameters, once, judge, charge, answer] =
        ["parameters", "once", "judge", "charge", "answer"]
            .map(|part| filled(&format!("--[[ {part} ]]"), kind));
    format!(
        "judge[{}] = function(key, now, args, at, flags, given_key)\nlocal verdict, state\n{parameters}{once}{judge}\
         return verdict, function()\n{charge}{charged}end, function()\n{answer}return state\nend\nend\n",
        kind as u8,
    )
}

/// Composes the script that reserves under several rules. Each charge returns the details for the
/// reservation.
fn hold(set: usize) -> String {
    let one = |kind: AlgorithmKind| {
        let details = strip(kind.part("details"));
        judged(
            kind,
            &format!("local details = ''\n{details}return pack('<I4', born) .. details\n"),
        )
    };
    let algorithms: String = kinds_of(set).map(one).collect();
    let frame = strip(include_str!("../scripts/several.lua"))
        .replacen(
            "place = unpack('<dBdc4Bc0'",
            "place, lasts, hold_lives = unpack('<dBdc4Bc0dd'",
            1,
        )
        .replace("--[[ algorithms ]]", &algorithms)
        .replace(
            "--[[ hold ]]\n",
            &strip(include_str!("../scripts/hold.lua")),
        );
    prelude_of(set) + &frame
}

/// Composes the script that reserves under one rule.
fn hold_one(kind: AlgorithmKind) -> String {
    let frame = in_frame(include_str!("../scripts/hold_one.lua"), kind);
    fetching(frame, kind, &["key", "given_key"])
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

/// The command with which a script reads a record.
const GET: &str = "call('GET', key)";
/// Finds a record among those that were read together, or reads it.
const GET_FROM_BATCH: &str = "(found or call('GET', key))";
/// Reads the records of the requests from `done + 1` to `last` by one command.
const GET_ALL: &str = "redis.pcall('MGET', values(keys, done + 1, last))";

fn batch(set: usize) -> String {
    let algorithm = |kind: AlgorithmKind| {
        let text = filled_with_units(include_str!("../scripts/batch_algorithm.lua"), kind);
        let reads_whole = text.contains(GET);
        text.replace(GET, GET_FROM_BATCH)
            .replace("--[[ records ]]", if reads_whole { GET_ALL } else { "{}" })
    };
    let algorithms: String = kinds_of(set).map(algorithm).collect();
    let frame = strip(include_str!("../scripts/batch.lua"));
    // The prelude uses the name `unpack` for another function.
    let text = "local values = table.unpack or unpack\n".to_owned()
        + &prelude_of(set)
        + &frame.replace("--[[ algorithms ]]", &algorithms);
    with_verdicts(&with_local_math(&text), "")
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

fn commit(set: usize) -> String {
    let one = |kind| {
        with_unit(
            &filled(include_str!("../scripts/commit_algorithm.lua"), kind),
            kind,
        )
    };
    let algorithms: String = kinds_of(set).map(one).collect();
    let frame = with_hold(include_str!("../scripts/commit.lua"));
    prelude_of(set) + &frame.replace("--[[ algorithms ]]", &algorithms)
}

/// Composes the script that commits a reservation under one rule.
fn commit_one(kind: AlgorithmKind) -> String {
    let frame = with_unit(
        &in_frame(include_str!("../scripts/commit_one.lua"), kind),
        kind,
    );
    fetching(frame, kind, &["KEYS[1]", "key", "given_key"])
}

/// Inserts the cost that the answer of a tally is about: a unit, as that of a peek.
fn with_unit(text: &str, kind: AlgorithmKind) -> String {
    text.replace(
        "--[[ unit ]]\n",
        if kind.is_tally() {
            "cost = 1000000000\n"
        } else {
            ""
        },
    )
}

/// Returns a script with the part that reads a reservation inserted.
fn with_hold(text: &str) -> String {
    strip(text).replace("--[[ hold ]]", &strip(include_str!("../scripts/held.lua")))
}

/// Returns the script that prolongs a reservation, and moves the places that it has under concurrent.
fn renew() -> String {
    let text = with_hold(include_str!("../scripts/renew.lua"));
    prelude(true) + &filled(&text, AlgorithmKind::Concurrent)
}

/// Returns a text with the parts and the number of an algorithm inserted, for requests of one unit.
fn filled(text: &str, kind: AlgorithmKind) -> String {
    let whole = with_parts(text, kind);
    let without = |text: String, part: &&str| text.replace(&format!("--[[ {part} ]]\n"), "");
    OF_UNITS
        .iter()
        .fold(whole, without)
        .replace(" * k)", ")")
        .replace(" * k,", ",")
}

/// Returns a text with the parts and the number of an algorithm inserted. A request may take several units, if
/// the algorithm can grant them.
fn filled_with_units(text: &str, kind: AlgorithmKind) -> String {
    let whole = with_parts(text, kind);
    OF_UNITS.iter().fold(whole, |text, part| {
        let inserted = strip(kind.part(part));
        let inserted = match *part {
            "correct" => format!("if unspent > 0 and born == made then\n{inserted}end\n"),
            _ => inserted,
        };
        text.replace(&format!("--[[ {part} ]]\n"), &inserted)
    })
}

fn with_parts(text: &str, kind: AlgorithmKind) -> String {
    let text = strip(text).replace("--[[ number ]]", &(kind as u8).to_string());
    let parts = PARTS.iter().filter(|part| !OF_UNITS.contains(part));
    parts.fold(text, |text, part| {
        text.replace(&format!("--[[ {part} ]]"), &strip(kind.part(part)))
    })
}

/// Removes comments and empty lines, since Redis keeps a copy of every script.
fn strip(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let kept = lines.filter(|line| !line.is_empty() && (!line.starts_with("--") || is_slot(line)));
    kept.fold(String::new(), |text, line| text + line + "\n")
}

fn is_slot(line: &str) -> bool {
    line.starts_with("--[[")
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn frames_are_filled() {
        let texts = KINDS.iter().map(|kind| single(*kind));
        let add = KINDS
            .iter()
            .map(|kind| in_frame(include_str!("../scripts/add.lua"), *kind));
        let sets = [1, 127]
            .into_iter()
            .flat_map(|set| [several(set), hold(set), batch(set), commit(set)]);
        let ones = KINDS
            .iter()
            .flat_map(|kind| [hold_one(*kind), commit_one(*kind)]);
        for text in texts.chain(add).chain(sets).chain(ones) {
            assert!(!text.contains("--"), "{text}");
        }
    }
}
