//! The command `earrrl top`: the clients of a running server, of state files or of a log, by rate.

mod args;
mod config_trial;
mod keys;
mod logged;
mod remote;
mod rule_trial;
mod snapshot;
mod source;
mod stored;
mod trial;
mod view;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::CliFailure;
use super::http_client::HttpClient;
pub(super) use args::TopArgs;
use args::TopOutput;
use keys::{KeyEffect, Screen};
use source::{ClientSource, ScreenRequest, Update};

/// The longest time until an update is drawn while no key is pressed.
const KEY_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Runs `earrrl top`.
pub(super) fn run(args: TopArgs) -> Result<ExitCode, CliFailure> {
    if args.once {
        return once(args);
    }
    if !io::stdout().is_terminal() {
        return Err(CliFailure::new(
            "standard output is no terminal; --once prints one table",
        ));
    }
    let limit = usize::from(args.limit);
    let interval = Duration::from_secs(args.interval.into());
    let rule = args.name();
    let source = source(args)?;
    let (request, requests) = channel();
    let (update, updates) = channel();
    thread::spawn(move || watch(source, rule, (limit, interval), &requests, &update));
    let mut terminal = ratatui::try_init()?;
    let ended = interact(&mut terminal, &request, &updates);
    ratatui::restore();
    ended.map(|()| ExitCode::SUCCESS).map_err(CliFailure::from)
}

fn source(args: TopArgs) -> Result<Box<dyn ClientSource>, CliFailure> {
    if let Some(path) = &args.state {
        let stored = stored::StoredSource::open(path).map_err(CliFailure::new)?;
        return Ok(Box::new(stored));
    }
    if args.is_log() {
        return Ok(Box::new(logged::LogSource::open(args)?));
    }
    let client = HttpClient::new(args.server, args.token, args.ca.as_deref());
    Ok(Box::new(remote::Remote(client.map_err(CliFailure::new)?)))
}

fn once(args: TopArgs) -> Result<ExitCode, CliFailure> {
    let limit = usize::from(args.limit);
    let output = args.output;
    let rule = args.name();
    let mut source = source(args)?;
    let snapshot = source
        .snapshot(rule.as_deref(), limit)
        .map_err(CliFailure::new)?;
    let text = match output {
        TopOutput::Table => snapshot.table(),
        TopOutput::Json => format!("{}\n", snapshot.json()),
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the source at intervals and after each request of the screen, until the screen is closed.
fn watch(
    mut source: Box<dyn ClientSource>,
    mut rule: Option<String>,
    (limit, interval): (usize, Duration),
    requests: &Receiver<ScreenRequest>,
    updates: &Sender<Update>,
) {
    loop {
        if updates
            .send(Update::State(source.snapshot(rule.as_deref(), limit)))
            .is_err()
        {
            return;
        }
        match requests.recv_timeout(interval) {
            Ok(ScreenRequest::Show(name)) => rule = Some(name),
            Ok(ScreenRequest::Reset(name, key)) => {
                let failed = source.reset(&name, &key).err().map(Update::NotReset);
                // If the screen is closed, the next update ends the loop.
                let _ = failed.map(|failed| updates.send(failed));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Waits until a key is pressed, for a tenth of a second at most. Returns true if the terminal was closed. Usually
/// SIGHUP ends the program then, but it is ignored under `nohup`, and `event::poll` would never return.
fn terminal_is_gone() -> io::Result<bool> {
    let output = io::stdout();
    let mut terminal = [PollFd::new(&output, PollFlags::IN)];
    match poll(&mut terminal, Some(&KEY_INTERVAL)) {
        // The size of the terminal has changed, which `event::poll` reports.
        Err(Errno::INTR) => Ok(false),
        polled => polled
            .map(|_| terminal[0].revents().contains(PollFlags::HUP))
            .map_err(Into::into),
    }
}

/// Draws the screen and reads keys until the user quits or the terminal is closed.
fn interact(
    terminal: &mut ratatui::DefaultTerminal,
    requests: &Sender<ScreenRequest>,
    updates: &Receiver<Update>,
) -> io::Result<()> {
    let mut screen = Screen::default();
    loop {
        for update in updates.try_iter() {
            screen.update(update, Instant::now());
        }
        terminal.draw(|frame| view::draw(frame, &mut screen))?;
        if terminal_is_gone()? {
            return Ok(());
        }
        // Keys that were read from the terminal together, as when text is pasted, do not wait there any more.
        while event::poll(Duration::ZERO)? {
            let Event::Key(key) = event::read()? else {
                continue;
            };
            match screen.press(key) {
                KeyEffect::Quit => return Ok(()),
                KeyEffect::Request(request) => drop(requests.send(request)),
                KeyEffect::Stay => {}
            }
        }
    }
}
