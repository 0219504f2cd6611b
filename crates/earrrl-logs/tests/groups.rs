//! Attacks from many addresses in made-up logs whose attackers are known, beside offices, carriers, proxies of a content
//! delivery network, apps and a flash crowd: `suggest` finds the attackers, touches nobody else, and is silent without
//! them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use earrrl_logs::format::Field;
use earrrl_logs::reading::LogReader;
use earrrl_logs::suggest::{Mark, PartRules, Rows, Sweep, judge};

use crate::reading::rows_of;

/// The length of a log in seconds.
const END: u64 = 4 * 3600;

/// A sequence of numbers that looks random (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn address(&mut self) -> String {
        let [b, c] = [(); 2].map(|()| self.below(256));
        format!("{}.{b}.{c}.{}", 11 + self.below(80), 1 + self.below(254))
    }

    /// A browser: six of them have most visitors.
    fn agent(&mut self) -> String {
        let many = self.below(10) < 8;
        format!(
            "Mozilla/5.0 Browser/{}",
            if many { self.below(6) } else { self.below(40) }
        )
    }
}

/// A log, line by line, and the addresses of its attackers.
struct Mix {
    random: Random,
    lines: Vec<(u64, String)>,
    attackers: BTreeSet<String>,
}

impl Mix {
    fn ask(&mut self, second: u64, visitor: (&str, &str, &str), path: &str, status: u16) {
        self.ask_from("-", second, visitor, path, status);
    }

    fn ask_from(
        &mut self,
        referer: &str,
        second: u64,
        (client, user, agent): (&str, &str, &str),
        path: &str,
        status: u16,
    ) {
        let time = earrrl_logs::line::time::written((1_704_110_400 + second) * 1_000_000_000);
        let (date, clock) = time.split_once(' ').unwrap();
        let is_form = matches!(path, "/login" | "/pay" | "/code" | "/renew" | "/contact");
        let method = if is_form { "POST" } else { "GET" };
        let line = format!(
            "{client} - {user} [{}/Jan/2024:{clock} +0000] \"{method} {path} HTTP/1.1\" {status} 5 \"{referer}\" \"{agent}\"\n",
            &date[8..]
        );
        self.lines.push((second, line));
    }

    /// A visit: perhaps a login, at times with a mistake, then pages with their parts.
    fn visit(&mut self, client: &str, mut second: u64, agent: &str) {
        let visitor = (client, "-", agent);
        if self.random.below(7) == 0 {
            for _ in 0..self.random.below(4).saturating_sub(1) {
                self.ask(second, visitor, "/login", 401);
                second += 5 + self.random.below(15);
            }
            self.ask(second, visitor, "/login", 302);
        }
        for _ in 0..=self.random.below(8) {
            let rank = self.random.below(60);
            let page = format!("/page/{}", self.random.below(rank + 1));
            let status = if self.random.below(50) == 0 { 404 } else { 200 };
            self.ask(second, visitor, &page, status);
            for part in 0..self.random.below(5) {
                self.ask(second + 1, visitor, &format!("/static/{part}.css"), 200);
            }
            second += 3 + self.random.below(60);
        }
    }

    fn honest(seed: u64) -> Self {
        let mut mix = Self {
            random: Random(seed),
            lines: Vec::new(),
            attackers: BTreeSet::new(),
        };
        let visit = |mix: &mut Self, client: &str, most: u64| {
            let (second, agent) = (mix.random.below(most), mix.random.agent());
            mix.visit(client, second, &agent);
        };
        for _ in 0..300 + mix.random.below(300) {
            let client = mix.random.address();
            visit(&mut mix, &client, END);
        }
        for office in 0..3 {
            (0..40).for_each(|_| visit(&mut mix, &format!("192.0.2.{office}"), END));
        }
        for carrier in 0..60 {
            visit(&mut mix, &format!("198.18.{}.{carrier}", carrier % 2), END);
        }
        for edge in 0..10 {
            (0..10).for_each(|_| visit(&mut mix, &format!("162.158.1.{edge}"), END));
        }
        for _ in 0..30 {
            let (client, mut second) = (mix.random.address(), mix.random.below(300));
            while second < END {
                mix.ask(second, (&client, "-", "App/3 okhttp/4"), "/api/status", 200);
                second += 250 + mix.random.below(100);
            }
        }
        for _ in 0..200 {
            let (client, second, agent) = (
                mix.random.address(),
                7200 + mix.random.below(600),
                mix.random.agent(),
            );
            mix.ask(second, (&client, "-", &agent), "/news", 200);
        }
        mix
    }

    /// An attacker that sends a request for the path each `every` seconds or so; 97 % of those for a login fail.
    fn attack(
        &mut self,
        client: &str,
        (user, agent): (&str, &str),
        path: impl Fn(u64) -> String,
        every: u64,
    ) {
        let mut second = self.random.below(every);
        while second < END {
            let number = self.random.below(4000);
            let path = path(number);
            let status = match &path[..] {
                "/login" if !number.is_multiple_of(33) => 401,
                path if path.starts_with("/wp") => 404,
                "/pay" if !number.is_multiple_of(7) => 402,
                _ => 200,
            };
            self.ask(second, (client, user, agent), &path, status);
            second += 1 + every / 2 + self.random.below(every);
        }
        self.attackers.insert(client.to_owned());
    }

    /// Returns the requests in the order of their times, and the names of their clients.
    fn rows(&mut self) -> (Rows, LogReader) {
        self.lines.sort_by_key(|(second, _)| *second);
        let mut log = String::new();
        self.lines
            .iter()
            .for_each(|(_, line)| write!(log, "{line}").unwrap());
        let fields = |name: &str| {
            let name = name.trim_start_matches("header:");
            vec![Field::new(name.trim_start_matches("user-"))]
        };
        rows_of(&log, fields)
    }

    /// Returns the groups that are found, and the names of the clients that their rules touch.
    fn found(mut self) -> (PartRules, BTreeSet<String>, BTreeSet<String>) {
        let (rows, reader) = self.rows();
        let suspected = rows.suspected(&reader.clients);
        let half_lives = [10, 60].map(Duration::from_secs);
        let most = |clients| clients / 20;
        let sweep = Sweep::new(&half_lives, most, || rows.requests()).unwrap();
        let parts = rows.parts(&half_lives, &most).unwrap();
        let rules = rows
            .rules(Some(&suspected), parts, &sweep, std::iter::empty())
            .unwrap();
        let touched = rules.groups.iter().flat_map(|group| &group.touched);
        let name = |&client: &u32| String::from_utf8_lossy(reader.clients.key(client)).into_owned();
        let touched = touched.map(name).collect();
        (rules, touched, self.attackers)
    }

    /// Returns the names of the clients that stand out, after addresses of many people are spared.
    fn standing_out(mut self) -> BTreeSet<String> {
        let (rows, reader) = self.rows();
        let half_lives = [10, 60].map(Duration::from_secs);
        let most = |clients: usize| clients / 20;
        let mut sweep = Sweep::new(&half_lives, most, || rows.requests()).unwrap();
        sweep.spare(rows.crowds(&sweep).unwrap());
        let judged = judge(&sweep, rows.requests()).unwrap();
        let touched = judged.touched.iter().filter(|_| sweep.gap().is_some());
        let name = |number| String::from_utf8_lossy(reader.clients.key(number)).into_owned();
        touched.map(|client| name(client.number)).collect()
    }
}

/// Checks that eight in ten attackers are found, and nobody else. Returns what the largest group is told by.
fn caught(mix: Mix) -> Mark {
    let (rules, touched, attackers) = mix.found();
    let honest: Vec<_> = touched.difference(&attackers).collect();
    assert!(honest.is_empty(), "{honest:?}");
    let found = touched.len();
    assert!(
        found * 10 >= attackers.len() * 8,
        "{found} of {}",
        attackers.len()
    );
    let first = &rules.groups[0];
    let again = rules.groups[1..]
        .iter()
        .filter(|group| group.mark == first.mark && group.paths == first.paths);
    assert!(
        again
            .flat_map(|group| &group.touched)
            .all(|client| !first.touched.contains(client))
    );
    first.mark
}

fn login(_: u64) -> String {
    "/login".to_owned()
}

#[test]
fn nothing_is_found_in_logs_without_attackers() {
    for seed in 0..6 {
        let (rules, ..) = Mix::honest(seed).found();
        assert!(rules.groups.is_empty(), "seed {seed}");
    }
}

#[test]
fn one_agent_from_six_networks_and_anywhere() {
    let mut mix = Mix::honest(10);
    for nth in 0..200 {
        let anywhere = mix.random.address();
        let network = format!("203.0.{}.{}", nth % 6, 1 + nth);
        let client = if nth % 2 == 0 { network } else { anywhere };
        mix.attack(
            &client,
            ("-", "Mozilla/5.0 (Windows NT 6.1) Chrome/91"),
            login,
            300,
        );
    }
    assert_eq!(caught(mix), Mark::Agent);
}

#[test]
fn networks_whose_clients_send_little_under_the_agents_of_all() {
    let mut mix = Mix::honest(20);
    for nth in 0..200 {
        let agent = mix.random.agent();
        mix.attack(
            &format!("203.0.{}.{}", nth % 6, 1 + nth),
            ("-", &agent),
            login,
            5000,
        );
    }
    assert_eq!(caught(mix), Mark::Network);
}

#[test]
fn a_botnet_that_has_nothing_in_common_but_its_rate() {
    let mut mix = Mix::honest(30);
    for _ in 0..150 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        mix.attack(&client, ("-", &agent), login, 400);
    }
    assert_eq!(caught(mix), Mark::Client);
}

#[test]
fn slow_guesses_for_one_user() {
    let mut mix = Mix::honest(40);
    for _ in 0..150 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        mix.attack(&client, ("admin", &agent), login, 4000);
    }
    assert_eq!(caught(mix), Mark::User);
}

#[test]
fn guesses_for_one_user_by_each_client() {
    let mut mix = Mix::honest(45);
    for nth in 0..150 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        mix.attack(&client, (&format!("user-{nth}"), &agent), login, 1500);
    }
    assert_eq!(caught(mix), Mark::Client);
}

#[test]
fn an_agent_of_many_in_networks_of_many() {
    let mut mix = Mix::honest(46);
    let agent = "Mozilla/5.0 Browser/1";
    for nth in 0..400 {
        let (second, other) = (mix.random.below(END), 2 + mix.random.below(4));
        let client = format!("203.0.{}.{}", nth % 4, 100 + nth % 150);
        mix.visit(&client, second, &format!("Mozilla/5.0 Browser/{other}"));
    }
    for nth in 0..160 {
        let client = format!("203.0.{}.{}", nth % 4, 1 + nth / 4);
        mix.attack(&client, ("-", agent), login, 4000);
    }
    assert_eq!(caught(mix), Mark::AgentInNetwork);
}

#[test]
fn clients_of_an_agent_that_only_attacks_whether_or_not_they_fail() {
    let mut mix = Mix::honest(47);
    for _ in 0..1500 {
        let client = mix.random.address();
        mix.attack(&client, ("-", "python-httpx/0.27"), login, END);
    }
    assert_eq!(caught(mix), Mark::Agent);
}

#[test]
fn guesses_of_paths_that_nobody_else_asks_for() {
    let mut mix = Mix::honest(48);
    for _ in 0..120 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        let path = |number| format!("/wp-{}.php", number % 30);
        mix.attack(&client, ("-", &agent), path, 900);
    }
    assert_eq!(caught(mix), Mark::Path);
}

/// Programs that say that they are browsers, and tabs of browsers in the background.
#[test]
fn one_path_without_a_page() {
    let search = |_| "/search".to_owned();
    let with_tabs = |seed| {
        let mut mix = Mix::honest(seed);
        for nth in 0..100 {
            let client = mix.random.address();
            let agent = mix.random.agent();
            let start = mix.random.below(END / 2);
            let end = if nth % 4 == 0 { END } else { start + 1 };
            for second in (start..end).step_by(60) {
                mix.ask(second, (&client, "-", &agent), "/search", 200);
            }
        }
        mix
    };
    assert!(with_tabs(49).found().1.is_empty());
    let mut mix = with_tabs(49);
    for _ in 0..60 {
        let client = mix.random.address();
        mix.attack(&client, ("-", "Mozilla/5.0 Browser/91"), search, 900);
    }
    assert_eq!(caught(mix), Mark::Agent);
}

#[test]
fn many_people_behind_an_address_do_not_stand_out_and_a_program_that_changes_its_agent_does() {
    let mut alone = 0;
    for seed in 0..6 {
        let office = |mix: &mut Mix| {
            for _ in 0..400 {
                let second = mix.random.below(END);
                let agent = mix.random.agent();
                mix.visit("198.51.100.7", second, &agent);
            }
        };
        let mut mix = Mix::honest(seed);
        office(&mut mix);
        let found = mix.standing_out();
        assert!(found.is_empty(), "seed {seed}: {found:?}");
        let mut mix = Mix::honest(seed);
        office(&mut mix);
        for tenth in 0..3000 {
            let agent = format!("Mozilla/5.0 Browser/{}", mix.random.below(40));
            mix.ask(
                5000 + tenth / 10,
                ("203.0.113.9", "-", &agent),
                "/page/1",
                200,
            );
        }
        alone += usize::from(mix.standing_out() == ["203.0.113.9".to_owned()].into());
    }
    assert_eq!(alone, 6);
}

#[test]
fn a_class_whose_pages_ask_for_news_does_not_stand_out_and_a_program_with_its_agents_does() {
    let alone = |referer: &str, user: &dyn Fn(u64) -> String, agents: u64| {
        let mut mix = Mix::honest(3);
        for second in 0..1200 {
            let agent = format!("Mozilla/5.0 Browser/{}", mix.random.below(agents));
            let user = user(mix.random.below(30));
            let pupil = ("198.51.100.7", &user[..], &agent[..]);
            mix.ask_from(referer, 3000 + second, pupil, "/exam/state", 200);
        }
        !mix.standing_out().is_empty()
    };
    let nobody = |_| "-".to_owned();
    let pupil = |number| format!("pupil{number}");
    assert!(!alone("https://example.org/exam", &nobody, 15));
    assert!(alone("-", &nobody, 15));
    // Users whom the server knows are people, unless one program has the accounts of all.
    assert!(!alone("-", &pupil, 15));
    assert!(alone("-", &pupil, 1));
}

/// The computers of a school have one agent. Each pupil logs in once, and a program again and again.
#[test]
fn a_class_of_one_agent_does_not_stand_out_and_a_program_that_logs_in_does() {
    let found = |logins: usize| {
        let mut mix = Mix::honest(4);
        for nth in 0..1800 {
            let path = match nth % (1800 / logins) {
                0 => "/login".to_owned(),
                _ => format!("/page/{}", mix.random.below(60)),
            };
            let class = ("198.51.100.7", "-", "Mozilla/5.0 Browser/1");
            let status = if path == "/login" { 302 } else { 200 };
            mix.ask(3000 + nth as u64 / 3, class, &path, status);
        }
        !mix.standing_out().is_empty()
    };
    assert!(!found(60));
    assert!(found(1));
    assert!(found(900));
}

/// Guesses under agents that change with each request, beside visitors who follow the dead links of a search engine.
#[test]
fn guesses_of_ever_new_paths_under_ever_new_agents() {
    let with_dead_links = |seed| {
        let mut mix = Mix::honest(seed);
        for _ in 0..150 {
            let client = mix.random.address();
            let agent = mix.random.agent();
            let mut second = mix.random.below(END);
            for _ in 0..=mix.random.below(6) {
                let path = format!("/old/{}.html", mix.random.below(3000));
                mix.ask(second, (&client, "-", &agent), &path, 404);
                second += 20;
            }
            mix.visit(&client, second, &agent);
        }
        mix
    };
    for seed in 70..73 {
        assert!(with_dead_links(seed).found().1.is_empty());
        let mut mix = with_dead_links(seed);
        for _ in 0..100 {
            let client = mix.random.address();
            let mut second = mix.random.below(2000);
            while second < END {
                let agent = mix.random.agent();
                let number = mix.random.below(u64::MAX);
                let path = format!("/{number:x}.php");
                mix.ask(second, (&client, "-", &agent), &path, 404);
                second += 800 + mix.random.below(2000);
            }
            mix.attackers.insert(client);
        }
        assert_eq!(caught(mix), Mark::Address);
    }
}

#[test]
fn guesses_of_paths_and_steady_readers_under_one_agent() {
    let mut mix = Mix::honest(50);
    for _ in 0..100 {
        let client = mix.random.address();
        mix.attack(
            &client,
            ("-", "Go-http-client/1.1"),
            |number| format!("/wp-{number}.php"),
            900,
        );
        let client = mix.random.address();
        mix.attack(
            &client,
            ("-", "HeadlessChrome/120"),
            |number| format!("/page/{number}"),
            400,
        );
    }
    assert_eq!(caught(mix), Mark::Agent);
}

/// Visitors of a shop, who look at pages before they pay, ask for a code by SMS, or look at a profile.
fn shop(seed: u64) -> Mix {
    let mut mix = Mix::honest(seed);
    for _ in 0..80 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        let mut second = mix.random.below(END - 1200);
        mix.visit(&client, second, &agent);
        second += 600;
        let visitor = (&*client, "-", &*agent);
        let profile = format!("/users/{}", mix.random.below(500));
        for path in [
            "/cart",
            "/pay",
            "/code",
            &profile,
            "/page/1",
            "/static/1.css",
        ] {
            if path == "/pay" && mix.random.below(8) == 0 {
                mix.ask(second, visitor, path, 402);
                second += 30;
            }
            mix.ask(second, visitor, path, 200);
            if *path == *profile {
                mix.ask(second + 1, visitor, "/static/1.css", 200);
            }
            second += 2 + mix.random.below(40);
        }
    }
    mix
}

/// A log that shows neither where visitors come from nor the parts of pages. Some visitors log in and go on elsewhere, or
/// give up; sessions, of which some began before the log, renew their tokens when people come back to them.
fn bare(seed: u64) -> Mix {
    let mut mix = shop(seed);
    mix.lines.retain(|(_, line)| !line.contains("/static/"));
    for nth in 0..240 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        let visitor = (&*client, "-", &*agent);
        let mut second = mix.random.below(END);
        for _ in 0..mix.random.below(4) {
            mix.ask(second, visitor, "/login", 401);
            second += 5 + mix.random.below(30);
        }
        if nth % 8 != 0 {
            mix.ask(second, visitor, "/login", 302);
        }
        let client = mix.random.address();
        let visitor = (&*client, "-", &*agent);
        let start = mix.random.below(2 * END);
        let mut second = start;
        for _ in 0..2 + mix.random.below(9) {
            if second == start && second >= END {
                mix.ask(second - END, visitor, "/login", 302);
                mix.ask(second - END + 1, visitor, "/page/1", 200);
            }
            second += 300 + mix.random.below(1500);
            if (END..2 * END).contains(&second) {
                mix.ask(second - END, visitor, "/renew", 200);
            }
        }
    }
    mix
}

/// Forms that are sent by clients that ask for nothing else: codes are ordered and passwords guessed a few times each,
/// and a page is flooded.
#[test]
fn forms_and_pages_alone_in_a_log_without_pages() {
    let kinds = [("/code", 4000), ("/login", 3000), ("/cart", 200)];
    for (seed, (path, every)) in (110..).zip(kinds) {
        let found = bare(seed).found();
        assert!(found.1.is_empty(), "seed {seed}: {:?}", found.1);
        let mut mix = bare(seed);
        for _ in 0..150 {
            let client = mix.random.address();
            let agent = mix.random.agent();
            mix.attack(&client, ("-", &agent), |_| path.to_owned(), every);
        }
        caught(mix);
    }
}

/// Cards are tried, codes ordered, profiles and pages read by browsers that never load a page and its parts.
#[test]
fn paths_that_visitors_reach_from_pages_and_others_alone() {
    let kinds = [
        ("/pay", 3000),
        ("/code", 6000),
        ("/users/#", 2500),
        ("/page/#", 1200),
    ];
    for (seed, (path, every)) in (80..).zip(kinds) {
        assert!(shop(seed).found().1.is_empty(), "seed {seed}");
        let mut mix = shop(seed);
        for _ in 0..80 {
            let client = mix.random.address();
            let agent = mix.random.agent();
            let numbered = |number: u64| path.replace('#', &(number % 60).to_string());
            mix.attack(&client, ("-", &agent), numbered, every);
        }
        caught(mix);
    }
}

/// Clients that have only their networks in common, or nothing, or a library for programs, read few pages each, and load
/// no parts of them.
#[test]
fn readers_of_few_pages() {
    for (seed, clients) in (120..).zip([24, 150, 40]) {
        assert!(shop(seed).found().1.is_empty(), "seed {seed}");
        let mut mix = shop(seed);
        for nth in 0..clients {
            let (client, agent) = match clients {
                24 => (format!("203.0.{}.{nth}", nth % 2), mix.random.agent()),
                40 => (mix.random.address(), "python-requests/2.31".to_owned()),
                _ => (mix.random.address(), mix.random.agent()),
            };
            let page = |number: u64| format!("/page/{}", number % 60);
            mix.attack(&client, ("-", &agent), page, 2400);
        }
        caught(mix);
    }
}

/// A log that shows where visitors come from: each of them names a page from the second request on.
fn with_referers(seed: u64) -> Mix {
    let mut mix = shop(seed);
    let mut seen = BTreeSet::new();
    mix.lines.sort_by_key(|(second, _)| *second);
    for (_, line) in &mut mix.lines {
        let is_browser = line.contains("Mozilla");
        let client = line.split(' ').next().unwrap_or_default();
        if is_browser && !seen.insert(client.to_owned()) {
            *line = line.replacen("\"-\"", "\"https://a.example/page/1\"", 1);
        }
    }
    mix
}

/// A form that no visitor sends is sent once or more, at a regular pace, or each time after a page.
#[test]
fn forms_that_hardly_any_visitor_sends() {
    for (seed, kind) in (140..).zip(["once", "regularly", "after a page"]) {
        let tabs = |seed| {
            let mut mix = with_referers(seed);
            for _ in 0..60 {
                let client = mix.random.address();
                let agent = mix.random.agent();
                for second in (mix.random.below(END / 2)..END).step_by(300) {
                    let visitor = (&*client, "-", &*agent);
                    mix.ask_from("https://a.example/", second, visitor, "/renew", 200);
                }
            }
            mix
        };
        let quiet = tabs(seed).found();
        assert!(quiet.1.is_empty(), "{kind}: {:?}", quiet.1);
        let mut mix = tabs(seed);
        for _ in 0..60 {
            let client = mix.random.address();
            let agent = mix.random.agent();
            let visitor = (&*client, "-", &*agent);
            let start = mix.random.below(END / 2);
            let seconds = (start..END).step_by(700);
            for second in seconds.take(if kind == "once" { 1 } else { 9 }) {
                if kind == "after a page" {
                    let page = format!("/page/{}", mix.random.below(60));
                    mix.ask(second - second % 200, visitor, &page, 200);
                }
                mix.ask(second, visitor, "/contact", 200);
            }
            mix.attackers.insert(client);
        }
        caught(mix);
    }
}

/// Clients that read page after page at a regular pace, which no tab in the background does.
#[test]
fn regular_readers_under_the_agents_of_all() {
    let mut mix = with_referers(145);
    for _ in 0..80 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        for second in (mix.random.below(END / 2)..END).step_by(400) {
            let page = format!("/page/{}", mix.random.below(60));
            mix.ask(second, (&client, "-", &agent), &page, 200);
        }
        mix.attackers.insert(client);
    }
    caught(mix);
}

/// Clients that name a page of a search each time, and so never one of the site that they were on, beside visitors who
/// come from a search once.
#[test]
fn readers_that_come_from_a_search_each_time() {
    let mut mix = with_referers(146);
    let search = "https://search.example/";
    for nth in 0..400 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        let start = mix.random.below(END / 2);
        let pages = if nth < 80 { 30 } else { 1 };
        for at in 0..pages {
            let page = format!("/page/{}", mix.random.below(60));
            let visitor = (&*client, "-", &*agent);
            let second = start + at * 200 + mix.random.below(100);
            mix.ask_from(search, second, visitor, &page, 200);
        }
        if pages > 1 {
            mix.attackers.insert(client);
        }
    }
    caught(mix);
}

/// Clients that ask for pages faster than a browser for their parts, but for no part and from no page.
#[test]
fn a_short_flood_of_pages_is_no_page_with_its_parts() {
    let mut mix = with_referers(147);
    for _ in 0..150 {
        let client = mix.random.address();
        let start = mix.random.below(END / 2);
        for second in start..start + 30 {
            let agent = mix.random.agent();
            let page = match second % 3 {
                0 => "/cart".to_owned(),
                1 => format!("/users/{}", mix.random.below(500)),
                _ => format!("/page/{}", mix.random.below(60)),
            };
            mix.ask(second, (&client, "-", &agent), &page, 200);
        }
        mix.attackers.insert(client);
    }
    caught(mix);
}

/// People who mistype their own passwords and give up within minutes, in a log that names them, beside guesses that go
/// on for hours.
#[test]
fn users_who_give_up_are_no_guessers() {
    let mistyped = |seed| {
        let mut mix = Mix::honest(seed);
        for nth in 0..150 {
            let client = mix.random.address();
            let agent = mix.random.agent();
            let mut second = mix.random.below(END);
            for _ in 0..1 + mix.random.below(7) {
                mix.ask(
                    second,
                    (&client, &format!("user{nth}"), &agent),
                    "/login",
                    401,
                );
                second += 5 + mix.random.below(20);
            }
        }
        mix
    };
    assert!(mistyped(148).found().1.is_empty());
    let mut mix = mistyped(149);
    for nth in 0..150 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        mix.attack(&client, (&format!("victim{nth}"), &agent), login, 600);
    }
    caught(mix);
}

/// A script that sends a form names a page of the site, and a program that asks at a regular pace loads no files, as a
/// tab in the background has.
#[test]
fn scripts_that_name_pages_and_regular_programs_without_files() {
    let mut mix = with_referers(150);
    for _ in 0..60 {
        let client = mix.random.address();
        let start = mix.random.below(END / 2);
        for nth in 0..1 + mix.random.below(4) {
            let script = (&*client, "-", "curl/8.5.0");
            let second = start + nth * 90;
            mix.ask_from("https://a.example/page/1", second, script, "/pay", 302);
        }
        mix.attackers.insert(client);
    }
    caught(mix);
    let mut mix = with_referers(151);
    for nth in 0..120 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        let is_tab = nth % 2 == 0;
        let referer = if is_tab {
            "https://a.example/users/1"
        } else {
            "-"
        };
        for second in (mix.random.below(END / 2)..END).step_by(120).take(30) {
            let visitor = (&*client, "-", &*agent);
            mix.ask_from(referer, second, visitor, "/users/1", 200);
        }
        if !is_tab {
            mix.attackers.insert(client);
        }
    }
    caught(mix);
}

/// Scanners try what is nowhere, each a few of the same paths; an old app asks for what is gone from one folder.
#[test]
fn scanners_share_their_paths_and_an_old_app_is_none() {
    let with_old_app = |seed| {
        let mut mix = Mix::honest(seed);
        for nth in 0..60 {
            let client = mix.random.address();
            let agent = mix.random.agent();
            for second in (nth * 10..END).step_by(1000) {
                let path = ["/api/v1/feed", "/api/v1/cart"];
                let path = path[mix.random.below(2) as usize];
                let second = second + mix.random.below(900);
                mix.ask(second, (&client, "-", &agent), path, 410);
            }
        }
        mix
    };
    assert!(with_old_app(146).found().1.is_empty());
    let mut mix = with_old_app(146);
    for _ in 0..80 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        let second = mix.random.below(END - 100);
        for nth in 0..6 {
            let place = (second + 7 * nth) % 40;
            let folder = ["admin", "backup", "old", "cgi-bin"][place as usize % 4];
            let path = format!("/{folder}/{place}.php");
            mix.ask(second + 2 * nth, (&client, "-", &agent), &path, 404);
        }
        mix.attackers.insert(client);
    }
    assert_eq!(caught(mix), Mark::Address);
}

/// Each client orders one code, all under one agent: too slowly for a limit with a short memory.
#[test]
fn forms_that_each_client_of_an_agent_sends_once() {
    let mut mix = shop(130);
    for _ in 0..120 {
        let client = mix.random.address();
        let second = mix.random.below(END);
        let agent = "Mozilla/5.0 (Windows NT 6.1) Chrome/91.0";
        mix.ask(second, (&client, "-", agent), "/code", 200);
        mix.attackers.insert(client);
    }
    assert_eq!(caught(mix), Mark::Agent);
}

/// Each guess is sent from the form, which is asked for before.
#[test]
fn guesses_by_clients_that_load_the_form() {
    let mut mix = Mix::honest(131);
    for _ in 0..100 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        let mut second = mix.random.below(1500);
        while second < END {
            let visitor = (&*client, "-", &*agent);
            mix.ask(second, visitor, "/login?next=/", 200);
            mix.ask_from(
                "https://a.example/login",
                second + 2,
                visitor,
                "/login",
                401,
            );
            second += 600 + mix.random.below(3000);
        }
        mix.attackers.insert(client);
    }
    caught(mix);
}

/// Programs of customers, who may read much of what apps show, and old apps, which are told that their version is gone.
#[test]
fn programs_of_customers_and_old_apps() {
    let mut mix = shop(132);
    for nth in 0..120 {
        let [app, old, customer] = [(); 3].map(|()| mix.random.address());
        let agent = mix.random.agent();
        let library = ["python-requests/2.31", "okhttp/4.9", "Go-http-client/1.1"][nth % 3];
        let mut second = mix.random.below(600);
        while second < END {
            let item = format!("/api/v2/items/{}", mix.random.below(300));
            mix.ask(second, (&app, "-", "App/2"), &item, 200);
            mix.ask(second, (&app, "-", "App/2"), "/api/v2/feed", 200);
            let visitor = mix.random.address();
            mix.ask(second, (&visitor, "-", &agent), "/api/v2/feed", 200);
            mix.ask(second, (&old, "-", &agent), "/api/v1/feed", 410);
            if nth < 45 {
                mix.ask(second + 60, (&customer, "-", library), &item, 200);
            }
            second += 60 + mix.random.below(1000);
        }
    }
    let (_, touched, _) = mix.found();
    assert!(touched.is_empty(), "{touched:?}");
}

/// Each request has an agent of its own, and asks for a page that visitors load with its parts.
#[test]
fn pages_under_ever_new_agents() {
    let mut mix = shop(90);
    for _ in 0..80 {
        let client = mix.random.address();
        let mut second = mix.random.below(900);
        while second < END {
            let agent = format!("Mozilla/5.0 Browser/{}", mix.random.below(5000));
            let path = format!("/page/{}", mix.random.below(60));
            mix.ask(second, (&client, "-", &agent), &path, 200);
            second += 300 + mix.random.below(900);
        }
        mix.attackers.insert(client);
    }
    assert_eq!(caught(mix), Mark::Address);
}

/// One page is asked for again and again, beside people who reload it in tabs in the background.
#[test]
fn a_flood_of_one_page_under_the_agents_of_all() {
    let with_tabs = |seed| {
        let mut mix = shop(seed);
        for _ in 0..40 {
            let client = mix.random.address();
            let agent = mix.random.agent();
            let start = mix.random.below(END / 2);
            for second in (start..END).step_by(60) {
                mix.ask(second, (&client, "-", &agent), "/page/0", 200);
            }
        }
        mix
    };
    assert!(with_tabs(91).found().1.is_empty());
    let mut mix = with_tabs(91);
    for _ in 0..100 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        mix.attack(&client, ("-", &agent), |_| "/page/0".to_owned(), 60);
    }
    caught(mix);
}

/// Clients of WebDAV whose every request is refused once, crawlers of a site that has moved, and an app whose access has
/// ended.
#[test]
fn those_that_are_refused_without_guessing_are_no_attackers() {
    let mut mix = Mix::honest(60);
    for nth in 0..60 {
        let crawler = (&*format!("66.249.64.{nth}"), "-", "Googlebot/2.1");
        let (dav, app) = (mix.random.address(), mix.random.address());
        for hour in 0..4 {
            for minute in 0..30 {
                let second = hour * 3600 + minute * 120;
                mix.ask(second, (&dav, "-", "davfs2/1.6"), "/files/login", 401);
                mix.ask(second, (&dav, "ann", "davfs2/1.6"), "/files/login", 207);
                mix.ask(second, crawler, &format!("/old/{minute}"), 404);
                mix.ask(second, (&app, "-", "App/2"), "/api/status", 401);
            }
        }
    }
    let (rules, ..) = mix.found();
    assert!(rules.groups.is_empty());
}

/// Pages whose images are gone, monitors and feed readers whose agents have the form of a browser's, visitors who mistype
/// their passwords, and carriers, which send most of the requests for each page.
#[test]
fn visitors_and_programs_that_look_like_attackers() {
    let mut mix = Mix::honest(61);
    for nth in 0..60 {
        let client = mix.random.address();
        let agent = mix.random.agent();
        let (visitor, mut second) = ((&*client, "-", &*agent), mix.random.below(END));
        for _ in 0..1 + mix.random.below(6) {
            mix.ask(second, visitor, "/login", 401);
            second += 5 + mix.random.below(40);
        }
        mix.ask(second, visitor, "/login", 302);
        mix.ask_from("https://site/page", second, visitor, "/files/1", 401);
        mix.ask(second, visitor, "/files/1", 200);
        for page in 0..3 {
            for _ in 0..8 {
                let image = format!("/images/{}.png", mix.random.below(2000));
                mix.ask_from(
                    "https://site/page",
                    second + page * 40,
                    visitor,
                    &image,
                    404,
                );
            }
        }
        let client = mix.random.address();
        let every = 60 + 840 * (nth % 2);
        let (agent, path) = match nth % 2 {
            0 => ("Mozilla/5.0+(compatible; OhDear/1.1)", "/status"),
            _ => ("Mozilla/5.0 (X11) Gecko/20100101 Reader/115", "/feed.xml"),
        };
        for second in (mix.random.below(every)..END).step_by(every as usize) {
            let status = if nth % 2 == 1 && second % 5 > 0 {
                304
            } else {
                200
            };
            mix.ask(second, (&client, "-", agent), path, status);
        }
    }
    for nth in 0..1500 {
        let second = mix.random.below(END);
        let agent = mix.random.agent();
        mix.visit(&format!("198.51.100.{}", nth % 3), second, &agent);
    }
    let (rules, ..) = mix.found();
    let paths: Vec<_> = rules
        .paths
        .iter()
        .map(|rule| String::from_utf8_lossy(&rule.path))
        .collect();
    assert!(rules.groups.is_empty() && paths.is_empty(), "{paths:?}");
}
