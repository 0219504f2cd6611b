//! The command `earrrl top`: the clients of a running server, by rate.
//!
//! One thread reads the server at intervals ([`remote`]) and sends what it found as a [`TopSnapshot`] to the thread of
//! the screen, which draws it and sends back what the user's keys ask for ([`keys`]).

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use keys::{KeyEffect, Order, Prompt, Screen, ScreenRequest, Update};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use remote::{Remote, TreeRow, figure, shortened};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::CliFailure;
use super::http_client::ServerOptions;

mod keys;
mod remote;

/// Show the clients of a running server by rate, live
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  earrrl top --rule login
  earrrl top --server 127.0.0.1:9090 --once --output json

Keys: s sorts, / filters, p pauses, r resets the selected client, Tab shows the next rule, q quits.")]
pub(super) struct TopArgs {
    /// The name of the rule to show, the first one if there is no name
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,

    #[command(flatten)]
    server: ServerOptions,

    /// Print one table, and end
    #[arg(long)]
    once: bool,

    /// The form of what --once prints
    #[arg(long, value_name = "FORM", default_value = "table", requires = "once")]
    output: TopOutput,

    /// The number of clients, 1 to 1000; of a rule with levels, of each level
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,

    /// The seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    interval: u16,
}

/// The forms of what `--once` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TopOutput {
    /// One row for each client
    Table,
    /// One JSON object
    Json,
}

/// The longest time until an update is drawn while no key is pressed.
const KEY_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Runs `earrrl top`.
pub(super) fn run(args: TopArgs) -> Result<ExitCode, CliFailure> {
    let server = Remote {
        client: args.server.client().map_err(CliFailure::new)?,
        count: args.limit.into(),
    };
    if args.once {
        return once(&server, args.rule.as_deref(), args.output);
    }
    if !io::stdout().is_terminal() {
        return Err(CliFailure::new(
            "standard output is no terminal; --once prints one table",
        ));
    }
    let interval = Duration::from_secs(args.interval.into());
    let (request, requests) = channel();
    let (update, updates) = channel();
    thread::spawn(move || watch(&server, args.rule, interval, &requests, &update));
    let mut terminal = ratatui::try_init()?;
    let ended = interact(&mut terminal, &request, &updates);
    ratatui::restore();
    ended.map(|()| ExitCode::SUCCESS).map_err(CliFailure::from)
}

fn once(server: &Remote, rule: Option<&str>, output: TopOutput) -> Result<ExitCode, CliFailure> {
    let snapshot = server.snapshot(rule).map_err(CliFailure::new)?;
    let text = match output {
        TopOutput::Table => snapshot.table(),
        TopOutput::Json => format!("{}\n", snapshot.json()),
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the server at intervals and after each request of the screen, until the screen is closed.
fn watch(
    server: &Remote,
    mut rule: Option<String>,
    interval: Duration,
    requests: &Receiver<ScreenRequest>,
    updates: &Sender<Update>,
) {
    loop {
        if updates
            .send(Update::State(server.snapshot(rule.as_deref())))
            .is_err()
        {
            return;
        }
        match requests.recv_timeout(interval) {
            Ok(ScreenRequest::Show(name)) => rule = Some(name),
            Ok(ScreenRequest::Reset(name, key)) => {
                let failed = server.reset(&name, &key).err().map(Update::NotReset);
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
        terminal.draw(|frame| draw(frame, &mut screen))?;
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

/// The width of the bar up to the limit.
const BAR: usize = 12;
/// The number of rules that the head lists at most.
const RULES: usize = 6;

/// Draws the rules, the clients and the line of keys.
fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let rules = screen.snapshot.rules.len().min(RULES) as u16;
    let areas = [
        Constraint::Length(rules + 1),
        Constraint::Min(3),
        Constraint::Length(1),
    ];
    let [head, body, foot] = Layout::vertical(areas).areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(screen)), head);
    draw_clients(frame, screen, body);
    frame.render_widget(Paragraph::new(foot_line(screen)), foot);
}

fn head_lines(screen: &Screen) -> Vec<Line<'static>> {
    let snapshot = &screen.snapshot;
    let status = match &screen.error {
        Some(error) => Span::styled(error.clone(), Style::new().fg(Color::Red)),
        None => Span::raw(snapshot.status.clone()),
    };
    let paused = if screen.paused { "  PAUSED" } else { "" };
    let title = Span::styled("earrrl top  ", Style::new().add_modifier(Modifier::BOLD));
    let mut lines = vec![Line::from(vec![title, status, Span::raw(paused)])];
    for (rule, rates) in snapshot.rules.iter().zip(&screen.rates).take(RULES) {
        let mark = if rule.name == snapshot.rule {
            "> "
        } else {
            "  "
        };
        let (requests, denied) = rates;
        lines.push(Line::from(format!(
            "{mark}{}  {}  {}/s, {}/s denied",
            rule.shown_name(),
            rule.shown_limit(),
            figure(*requests),
            figure(*denied)
        )));
    }
    lines
}

fn draw_clients(frame: &mut Frame<'_>, screen: &mut Screen, area: Rect) {
    let rows: Vec<Row<'static>> = screen.clients().into_iter().map(row).collect();
    let widths = [
        Constraint::Min(12),
        Constraint::Length(9),
        Constraint::Length(BAR as u16),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let titles = ["CLIENT", "RATE", "", "USAGE", "WAIT", "ALLOWED", "DENIED"];
    let header = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
    let highlight = Style::new().add_modifier(Modifier::REVERSED);
    let table = Table::new(rows, widths)
        .header(header)
        .row_highlight_style(highlight);
    frame.render_stateful_widget(table, area, &mut screen.selected);
}

fn row(TreeRow { client, name }: TreeRow<'_>) -> Row<'static> {
    let colour = match client.usage {
        usage if usage >= 1.0 => Color::Red,
        usage if usage >= 0.5 => Color::Yellow,
        _ => Color::Green,
    };
    Row::new([
        Cell::from(name),
        Cell::from(client.rate()),
        Cell::from(bar(client.usage)).style(Style::new().fg(colour)),
        Cell::from(format!("{:.0}%", (100.0 * client.usage).min(99_999.0))),
        Cell::from(client.wait()),
        Cell::from(client.allowed.to_string()),
        Cell::from(client.denied.to_string()),
    ])
}

/// Returns a bar that is full at the limit.
fn bar(usage: f64) -> String {
    let full = (usage.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    "█".repeat(full) + &"·".repeat(BAR - full)
}

fn foot_line(screen: &Screen) -> String {
    if let Some(reason) = &screen.not_reset {
        return format!("not reset: {reason}");
    }
    match &screen.prompt {
        Prompt::Filter => format!("filter: {}_", screen.filter),
        Prompt::Reset(_, key) => format!("reset {}? y/n", shortened(key)),
        Prompt::Nothing => {
            let order = match screen.order {
                Order::Usage => "usage",
                Order::Denied => "denied",
                Order::Name => "name",
            };
            format!("s sort ({order})  / filter  p pause  r reset  Tab rule  q quit")
        }
    }
}
