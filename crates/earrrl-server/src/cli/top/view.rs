//! Draws the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::keys::{Order, Prompt, Screen};
use super::snapshot::{TreeRow, figure, shortened};

/// The width of the bar up to the limit.
const BAR: usize = 12;
/// The number of rules that the head lists at most.
const RULES: usize = 6;

/// Draws the rules, the clients and the line of keys.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
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
        let rates = rates.map_or("?/s, ?/s denied".to_owned(), |(requests, denied)| {
            format!("{}/s, {}/s denied", figure(requests), figure(denied))
        });
        lines.push(Line::from(format!(
            "{mark}{}  {}  {rates}",
            rule.shown_name(),
            rule.limit
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
