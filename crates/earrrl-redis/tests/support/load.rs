//! Sends requests continuously while a test causes faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use earrrl::{Charge, Cost, Engine, RuleId};
use earrrl_redis::{EngineMode, RedisEngine};
use tokio::task::JoinHandle;

use super::until;

/// The number of tasks that send requests; each has its own clients.
const TASKS: u64 = 8;
const CLIENTS: u64 = 50;

pub struct Load {
    stop: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Vec<u64>>>,
}

impl Load {
    /// Starts the load. Every decision must succeed and be allowed, so the rule must have a large
    /// quota.
    pub fn start(engine: &Arc<RedisEngine>, rule: RuleId) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let decided = Arc::<AtomicU64>::default();
        let tasks = (0..TASKS).map(|task| {
            let engine = engine.clone();
            let stop = stop.clone();
            let decided = decided.clone();
            tokio::spawn(async move {
                let mut sent = vec![0; CLIENTS as usize];
                for turn in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = client(task, turn % CLIENTS);
                    let charge = Charge {
                        rule,
                        key: key.as_bytes(),
                        cost: Cost::ONE,
                    };
                    let decision = engine
                        .decide(&[charge], earrrl::Mode::Check, None)
                        .await
                        .unwrap();
                    assert!(decision.allowed);
                    sent[(turn % CLIENTS) as usize] += 1;
                    decided.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
                sent
            })
        });
        let tasks = tasks.collect();
        Self {
            stop,
            decided,
            tasks,
        }
    }

    /// Waits until `more` further decisions were made.
    pub async fn goes_on(&self, more: u64) {
        let from = self.decided.load(Ordering::Relaxed);
        until("decisions go on", || {
            self.decided.load(Ordering::Relaxed) >= from + more
        })
        .await;
    }

    /// Stops the load, and returns the number of requests of every client.
    pub async fn stop(self) -> Vec<(String, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sent = Vec::new();
        for (task, counts) in (0..).zip(self.tasks) {
            let counts = counts.await.unwrap();
            sent.extend(
                (0..)
                    .zip(counts)
                    .map(|(number, count)| (client(task, number), count)),
            );
        }
        sent
    }
}

fn client(task: u64, number: u64) -> String {
    format!("client-{task}-{number}")
}

/// Waits until the engine is in the given mode.
pub async fn becomes(engine: &RedisEngine, mode: EngineMode) {
    until(&format!("the engine is {}", mode.name()), || {
        engine.status().mode == mode
    })
    .await;
}
