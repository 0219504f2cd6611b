//! Draws the figures of `docs/replay.md`: `cargo run -p earrrl-logs --example article -- docs/figures`

mod figures;

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args()
        .nth(1)
        .ok_or("expected a folder for the figures")?;
    for (name, figure) in figures::all()? {
        earrrl_logs::plot::save(&figure, &Path::new(&folder).join(format!("{name}.svg")))?;
    }
    Ok(())
}
