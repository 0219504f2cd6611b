//! Benchmarks of decisions on Redis. The argument of `cargo run --release --` chooses one:
//!
//! - `cost [clients]` compares the cost of a decision with that of other scripts, `faults` measures decisions while
//!   Redis breaks, and `all [clients]` does both; `near [clients]` measures near decisions.

mod cost;
mod faults;
mod near;
#[path = "../../../crates/earrrl-redis/tests/support/mod.rs"]
mod support;

#[tokio::main(worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["cost"] => cost::run(1_000_000).await,
        ["cost", clients] => cost::run(clients.parse().expect("a number of clients")).await,
        ["faults"] => faults::run().await,
        ["near"] => near::run(100_000).await,
        ["near", clients] => near::run(clients.parse().expect("a number of clients")).await,
        ["all", clients @ ..] => {
            let clients = clients.first().map_or(1_000_000, |clients| {
                clients.parse().expect("a number of clients")
            });
            cost::run(clients).await;
            println!();
            faults::run().await;
        }
        _ => eprintln!("expected `cost [clients]`, `faults`, `near [clients]` or `all [clients]`"),
    }
}
