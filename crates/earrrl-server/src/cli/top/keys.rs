//! The state of the screen, and the effect of keys on it.

use std::time::Instant;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;

use super::remote::{RuleCounts, TopSnapshot, TreeRow, tree};

/// A request of the screen to the thread that reads the server.
pub(super) enum ScreenRequest {
    /// Show this rule from now on.
    Show(String),
    /// Reset the client of this rule and key.
    Reset(String, Vec<u8>),
}

/// A message of the thread that reads the server to the screen.
pub(super) enum Update {
    /// The present state, or the reason why it is not known.
    State(Result<TopSnapshot, String>),
    /// A client was not reset, for this reason.
    NotReset(String),
}

/// The figure by which clients are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// The usage of the limit.
    #[default]
    Usage,
    /// The number of denied requests.
    Denied,
    /// The name.
    Name,
}

/// The input that the next key belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Prompt {
    /// A command.
    #[default]
    Nothing,
    /// A character of the filter.
    Filter,
    /// The answer whether the client of this rule and key shall be reset.
    Reset(String, Vec<u8>),
}

/// The effect of a key beyond the screen.
pub(super) enum KeyEffect {
    /// None.
    Stay,
    /// The program ends.
    Quit,
    /// The server gets a request.
    Request(ScreenRequest),
}

/// The state of the screen.
#[derive(Default)]
pub(super) struct Screen {
    pub(super) snapshot: TopSnapshot,
    /// Requests and denials a second by rule, in the order of the snapshot's rules.
    pub(super) rates: Vec<(f64, f64)>,
    pub(super) error: Option<String>,
    /// The reason why a client was not reset, until the next key.
    pub(super) not_reset: Option<String>,
    pub(super) order: Order,
    pub(super) filter: String,
    pub(super) paused: bool,
    pub(super) prompt: Prompt,
    pub(super) selected: TableState,
    updated: Option<Instant>,
}

impl Screen {
    /// Shows an update; a paused screen keeps its snapshot.
    pub(super) fn update(&mut self, update: Update, now: Instant) {
        match update {
            Update::NotReset(reason) => self.not_reset = Some(reason),
            Update::State(_) if self.paused => {}
            Update::State(Err(error)) => self.error = Some(error),
            Update::State(Ok(snapshot)) => {
                let seconds = self.updated.map(|at| now.duration_since(at).as_secs_f64());
                self.rates = rates(&self.snapshot, &snapshot, seconds);
                (self.snapshot, self.error, self.updated) = (snapshot, None, Some(now));
            }
        }
    }

    /// Returns the clients that the filter admits, in the chosen order, as a tree if there are levels.
    pub(super) fn clients(&self) -> Vec<TreeRow<'_>> {
        let each = self.snapshot.clients.iter();
        let mut clients: Vec<_> = each
            .filter(|one| one.name().contains(&self.filter))
            .collect();
        match self.order {
            Order::Usage => {}
            Order::Denied => clients.sort_by_key(|one| std::cmp::Reverse(one.denied)),
            Order::Name => clients.sort_by_cached_key(|one| (&one.parts, one.name())),
        }
        tree(clients)
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> KeyEffect {
        if key.kind == KeyEventKind::Release {
            return KeyEffect::Stay;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return KeyEffect::Quit;
        }
        self.not_reset = None;
        match std::mem::take(&mut self.prompt) {
            Prompt::Nothing => self.command(key.code),
            Prompt::Filter => self.edit(key.code),
            Prompt::Reset(rule, client) => match key.code {
                KeyCode::Char('y') => KeyEffect::Request(ScreenRequest::Reset(rule, client)),
                _ => KeyEffect::Stay,
            },
        }
    }

    fn command(&mut self, code: KeyCode) -> KeyEffect {
        match code {
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Char('q') | KeyCode::Esc => return KeyEffect::Quit,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('/') => self.prompt = Prompt::Filter,
            KeyCode::Down | KeyCode::Char('j') => self.selected.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.selected.select_previous(),
            KeyCode::Tab => return self.next_rule(),
            KeyCode::Char('s') => {
                self.order = match self.order {
                    Order::Usage => Order::Denied,
                    Order::Denied => Order::Name,
                    Order::Name => Order::Usage,
                };
            }
            KeyCode::Char('r') => match self.client_to_reset() {
                Some(Ok(prompt)) => self.prompt = prompt,
                Some(Err(reason)) => self.not_reset = Some(reason.to_owned()),
                None => {}
            },
            _ => {}
        }
        KeyEffect::Stay
    }

    /// Returns the question whether to reset the selected client, or the reason why the client cannot be reset by what
    /// is known of its key, which could be another client's key. `None` if there are no clients.
    fn client_to_reset(&self) -> Option<Result<Prompt, &'static str>> {
        let clients = self.clients();
        let client = clients.get(self.selected.selected().unwrap_or(0))?.client;
        Some(match &client.key {
            None => Err("only the fingerprint of this client is known"),
            Some(_) if !self.snapshot.names_are_keys => Err("only the HMAC of this key is known"),
            Some(_) if client.key_is_cut => Err("only the beginning of this key is known"),
            Some(key) => Ok(Prompt::Reset(client.rule.clone(), key.clone())),
        })
    }

    fn edit(&mut self, code: KeyCode) -> KeyEffect {
        self.prompt = Prompt::Filter;
        match code {
            KeyCode::Enter => self.prompt = Prompt::Nothing,
            KeyCode::Esc => {
                self.filter.clear();
                self.prompt = Prompt::Nothing;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) if self.filter.len() < 64 => self.filter.push(character),
            _ => {}
        }
        KeyEffect::Stay
    }

    fn next_rule(&mut self) -> KeyEffect {
        let rules = &self.snapshot.rules;
        let place = rules
            .iter()
            .position(|rule| rule.name == self.snapshot.rule);
        let next = place.map_or(0, |place| place + 1) % rules.len().max(1);
        match rules.get(next) {
            Some(rule) => KeyEffect::Request(ScreenRequest::Show(rule.name.clone())),
            None => KeyEffect::Stay,
        }
    }
}

/// Returns the requests and the denials a second between two snapshots, by rule.
fn rates(before: &TopSnapshot, after: &TopSnapshot, seconds: Option<f64>) -> Vec<(f64, f64)> {
    let rate = |rule: &RuleCounts| {
        let old = before.rules.iter().find(|old| old.name == rule.name);
        let (Some(old), Some(seconds)) = (old, seconds.filter(|seconds| *seconds > 0.0)) else {
            return (0.0, 0.0);
        };
        let denied = rule.denied.saturating_sub(old.denied) as f64 / seconds;
        let allowed = rule.allowed.saturating_sub(old.allowed) as f64 / seconds;
        (allowed + denied, denied)
    };
    after.rules.iter().map(rate).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::top::remote::TopRow;

    fn press(screen: &mut Screen, code: KeyCode) -> KeyEffect {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn snapshot(allowed: u64, denied: u64) -> TopSnapshot {
        let rule = |name: &str| RuleCounts {
            name: name.to_owned(),
            allowed,
            denied,
            ..RuleCounts::default()
        };
        let client = |key: &str, usage, denied| TopRow {
            rule: "api".to_owned(),
            key: Some(key.as_bytes().to_vec()),
            usage,
            denied,
            ..TopRow::default()
        };
        TopSnapshot {
            rule: "api".to_owned(),
            rules: vec![rule("api"), rule("login")],
            clients: vec![
                client("bob", 2.0, 1),
                client("alice", 1.0, 9),
                client("carol", 0.5, 0),
            ],
            names_are_keys: true,
            ..TopSnapshot::default()
        }
    }

    fn state(snapshot: TopSnapshot) -> Update {
        Update::State(Ok(snapshot))
    }

    fn names(screen: &Screen) -> Vec<String> {
        screen
            .clients()
            .iter()
            .map(|row| row.name.clone())
            .collect()
    }

    #[test]
    fn keys_sort_filter_and_pause() {
        let mut screen = Screen::default();
        let start = Instant::now();
        screen.update(state(snapshot(10, 0)), start);
        assert_eq!(names(&screen), ["bob", "alice", "carol"]);
        press(&mut screen, KeyCode::Char('s'));
        assert_eq!(names(&screen), ["alice", "bob", "carol"]);
        press(&mut screen, KeyCode::Char('s'));
        assert_eq!(names(&screen), ["alice", "bob", "carol"]);
        for key in "/arq".chars() {
            press(&mut screen, KeyCode::Char(key));
        }
        press(&mut screen, KeyCode::Backspace);
        press(&mut screen, KeyCode::Enter);
        assert_eq!(names(&screen), ["carol"]);
        assert!(
            matches!(press(&mut screen, KeyCode::Esc), KeyEffect::Stay),
            "it removes the filter"
        );
        assert_eq!(names(&screen), ["alice", "bob", "carol"]);
        press(&mut screen, KeyCode::Char('p'));
        screen.update(state(snapshot(99, 0)), start + Duration::from_secs(1));
        assert_eq!(screen.snapshot.rules[0].allowed, 10);
        assert!(matches!(
            press(&mut screen, KeyCode::Char('q')),
            KeyEffect::Quit
        ));
    }

    /// Returns a snapshot of two organisations, with the teams of one.
    fn levels() -> TopSnapshot {
        let client = |rule: &str, key: &str, parts: &[&str], denied| TopRow {
            rule: rule.to_owned(),
            key: Some(key.as_bytes().to_vec()),
            parts: parts.iter().map(|part| part.as_bytes().to_vec()).collect(),
            denied,
            ..TopRow::default()
        };
        TopSnapshot {
            clients: vec![
                client("team", "4:acme,3:ops,", &["acme", "ops"], 3),
                client("team", "4:acme,4:core,", &["acme", "core"], 5),
                client("org", "beta", &["beta"], 4),
                client("org", "acme", &["acme"], 1),
                client("org", "ac", &["ac"], 0),
                client("org", "acme", &[], 0),
            ],
            names_are_keys: true,
            ..TopSnapshot::default()
        }
    }

    #[test]
    fn each_order_is_kept_within_each_client_of_the_level_above() {
        let mut screen = Screen::default();
        screen.update(state(levels()), Instant::now());
        let by_usage = ["beta", "acme", "  ops", "  core", "ac", "acme"];
        let by_denials = ["beta", "acme", "  core", "  ops", "ac", "acme"];
        let by_name = ["acme", "ac", "acme", "  core", "  ops", "beta"];
        for expected in [by_usage, by_denials, by_name] {
            assert_eq!(names(&screen), expected);
            press(&mut screen, KeyCode::Char('s'));
        }
        for key in "/core".chars() {
            press(&mut screen, KeyCode::Char(key));
        }
        assert_eq!(names(&screen), ["4:acme,4:core,"]);
    }

    #[test]
    fn a_client_is_reset_under_the_rule_of_its_level() {
        let mut screen = Screen::default();
        screen.update(state(levels()), Instant::now());
        screen.selected.select(Some(2));
        press(&mut screen, KeyCode::Char('r'));
        let KeyEffect::Request(ScreenRequest::Reset(rule, key)) =
            press(&mut screen, KeyCode::Char('y'))
        else {
            panic!("no reset");
        };
        assert_eq!((&*rule, &*key), ("team", &b"4:acme,3:ops,"[..]));
    }

    #[test]
    fn a_client_whose_key_is_not_exact_is_not_reset() {
        let spoil: [fn(&mut TopSnapshot); 3] = [
            |snapshot| snapshot.clients[0].key_is_cut = true,
            |snapshot| snapshot.names_are_keys = false,
            |snapshot| snapshot.clients[0].key = None,
        ];
        for (spoil, reason) in spoil.into_iter().zip(["beginning", "HMAC", "fingerprint"]) {
            let mut screen = Screen::default();
            let mut spoilt = snapshot(0, 0);
            spoil(&mut spoilt);
            screen.update(state(spoilt), Instant::now());
            press(&mut screen, KeyCode::Char('r'));
            assert!(
                screen
                    .not_reset
                    .as_ref()
                    .is_some_and(|why| why.contains(reason))
            );
            assert!(matches!(
                press(&mut screen, KeyCode::Char('y')),
                KeyEffect::Stay
            ));
        }
    }

    #[test]
    fn a_reset_needs_a_confirmation() {
        let mut screen = Screen::default();
        screen.update(state(snapshot(0, 0)), Instant::now());
        press(&mut screen, KeyCode::Down);
        press(&mut screen, KeyCode::Down);
        press(&mut screen, KeyCode::Char('r'));
        assert!(matches!(
            press(&mut screen, KeyCode::Char('n')),
            KeyEffect::Stay
        ));
        press(&mut screen, KeyCode::Char('r'));
        let KeyEffect::Request(ScreenRequest::Reset(rule, key)) =
            press(&mut screen, KeyCode::Char('y'))
        else {
            panic!("no reset");
        };
        assert_eq!((&*rule, &*key), ("api", &b"alice"[..]));
        let KeyEffect::Request(ScreenRequest::Show(next)) = press(&mut screen, KeyCode::Tab) else {
            panic!("no other rule");
        };
        assert_eq!(next, "login");
    }

    #[test]
    fn rates_are_differences_of_counters() {
        let mut screen = Screen::default();
        let start = Instant::now();
        screen.update(state(snapshot(100, 10)), start);
        screen.update(state(snapshot(180, 30)), start + Duration::from_secs(2));
        assert_eq!(screen.rates, [(50.0, 10.0); 2]);
        screen.update(Update::State(Err("gone".to_owned())), start);
        assert_eq!(screen.error.as_deref(), Some("gone"));
    }
}
