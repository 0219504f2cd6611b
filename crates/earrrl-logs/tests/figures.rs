//! The figures of the documentation that an example draws.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../examples/article/figures/mod.rs"]
mod article;

use std::fs;

#[test]
fn figures_of_the_article_are_as_drawn() {
    for (name, figure) in article::all().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("figure.svg");
        earrrl_logs::plot::save(&figure, &file).unwrap();
        let drawn = fs::read_to_string(file).unwrap();
        let path = format!(
            "{}/../../docs/figures/{name}.svg",
            env!("CARGO_MANIFEST_DIR")
        );
        let committed = fs::read_to_string(path).unwrap();
        assert!(
            drawn == committed,
            "{name}: run `cargo run -p earrrl-logs --example article -- docs/figures` again"
        );
    }
}
