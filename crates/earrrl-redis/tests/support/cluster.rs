//! A Cluster of three masters and three replicas on the loopback network.

use super::proxy::Proxy;
use super::tools::tool;
use super::{Server, until};

const MASTERS: usize = 3;

/// Six servers, of which the first three start as masters.
pub struct Cluster {
    pub nodes: Vec<Server>,
}

impl Cluster {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a Cluster with additional options for every server.
    pub async fn start_with(more: &[&str]) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..2 * MASTERS {
            let options = [
                "--cluster-enabled",
                "yes",
                // The timeout is long while the Cluster forms, so that a busy machine does not
                // cause a failover.
                "--cluster-node-timeout",
                "3000",
                "--cluster-replica-validity-factor",
                "0",
                "--repl-diskless-sync-delay",
                "0",
            ];
            nodes.push(Server::start_with_a_clock(&[&options, more].concat()).await);
        }
        let cluster = Self { nodes };
        cluster.form();
        until("the Cluster is whole", || cluster.is_whole()).await;
        for node in &cluster.nodes {
            node.command::<()>(&["CONFIG", "SET", "cluster-node-timeout", "1000"])
                .unwrap();
        }
        cluster
    }

    /// Disables failover, and lets the other shards serve when one is down.
    pub fn without_failover(&self) {
        for node in &self.nodes {
            for (option, value) in [
                ("cluster-replica-no-failover", "yes"),
                ("cluster-require-full-coverage", "no"),
            ] {
                node.command::<()>(&["CONFIG", "SET", option, value])
                    .unwrap();
            }
        }
    }

    /// Puts a proxy in front of every server; the Cluster announces the proxies' addresses to
    /// clients.
    pub async fn behind_proxies(&self) -> Vec<Proxy> {
        let mut proxies = Vec::new();
        for node in &self.nodes {
            let proxy = Proxy::start(node.port).await;
            for (option, port) in [
                ("cluster-announce-bus-port", u32::from(node.port) + 10_000),
                ("cluster-announce-port", proxy.port.into()),
            ] {
                node.command::<()>(&["CONFIG", "SET", option, &port.to_string()])
                    .unwrap();
            }
            proxies.push(proxy);
        }
        until("every server knows the proxies", || {
            self.nodes.iter().all(|node| {
                let known: String = node.command(&["CLUSTER", "NODES"]).unwrap_or_default();
                proxies
                    .iter()
                    .all(|proxy| known.contains(&format!(":{}@", proxy.port)))
            }) && self.is_whole()
        })
        .await;
        proxies
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    fn form(&self) {
        let addresses: Vec<_> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        let created = tool("redis-cli")
            .args(["--cluster", "create"])
            .args(&addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap();
        assert!(created.status.success(), "{created:?}");
    }

    /// Returns true if every node sees all slots served and every replica up to date.
    pub fn is_whole(&self) -> bool {
        self.nodes.iter().all(|node| {
            let info: String = node.command(&["CLUSTER", "INFO"]).unwrap_or_default();
            let replication: String = node.command(&["INFO", "replication"]).unwrap_or_default();
            let in_step = replication.contains("role:master")
                || replication.contains("master_link_status:up");
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:6") && in_step
        })
    }

    /// Returns the index of the server that is the master of a slot.
    pub fn master_of(&self, slot: u16) -> usize {
        self.nodes
            .iter()
            .position(|node| serves(node, slot))
            .unwrap()
    }

    /// Returns the slot of a client's records: that of the smallest number whose slot is among the
    /// same 16 as that of the client's name.
    pub fn slot_of(&self, client: &str) -> u16 {
        let wanted = slot(client) / 16;
        (0u32..)
            .map(|tag| slot(&tag.to_string()))
            .find(|slot| slot / 16 == wanted)
            .unwrap()
    }

    /// Makes a replica replace a master, after it has received all data.
    pub async fn fail_over(&self, master: usize) {
        let id = self.nodes[master].id_in_cluster();
        let is_replica = |node: &&Server| {
            let nodes: String = node.command(&["CLUSTER", "NODES"]).unwrap();
            let myself = nodes.lines().find(|line| line.contains("myself,slave"));
            myself.is_some_and(|line| line.contains(&id))
        };
        let replica = self.nodes.iter().find(is_replica).unwrap();
        replica.command::<String>(&["CLUSTER", "FAILOVER"]).unwrap();
        until("the replica is master, and the master its replica", || {
            replica.is_master() && !self.nodes[master].is_master() && self.is_whole()
        })
        .await;
    }

    /// Moves a slot from one master to another, key by key.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_to_move_slot(slot, from, to);
        let slot = slot.to_string();
        let from = &self.nodes[from];
        let to = &self.nodes[to];
        let to_id = to.id_in_cluster();
        let port = to.port.to_string();
        loop {
            let keys: Vec<String> = from
                .command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"])
                .unwrap();
            let [key] = &keys[..] else { break };
            from.command::<String>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])
                .unwrap();
        }
        for node in [to, from] {
            node.command::<String>(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id])
                .unwrap();
        }
    }

    /// Marks a slot as moving from one master to another, without moving any key.
    pub fn begin_to_move_slot(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let from = &self.nodes[from];
        let to = &self.nodes[to];
        for (node, how, other) in [(to, "IMPORTING", from), (from, "MIGRATING", to)] {
            let words = ["CLUSTER", "SETSLOT", &slot, how, &other.id_in_cluster()];
            node.command::<String>(&words).unwrap();
        }
    }

    /// Waits until a node other than `dead` serves the slot.
    pub async fn fails_over(&self, slot: u16, dead: usize) {
        until("a replica takes over", || {
            let alive = self
                .nodes
                .iter()
                .enumerate()
                .filter(|(place, _)| *place != dead);
            alive.map(|(_, node)| node).any(|node| serves(node, slot))
        })
        .await;
    }
}

impl Server {
    pub fn is_master(&self) -> bool {
        let info: String = self.command(&["INFO", "replication"]).unwrap_or_default();
        info.contains("role:master")
    }

    fn id_in_cluster(&self) -> String {
        self.command(&["CLUSTER", "MYID"]).unwrap()
    }
}

/// Returns true if a node considers itself the master of a slot.
fn serves(node: &Server, slot: u16) -> bool {
    let nodes: String = node.command(&["CLUSTER", "NODES"]).unwrap_or_default();
    let myself = nodes.lines().find(|line| line.contains("myself,master"));
    let ranges = myself.into_iter().flat_map(|line| line.split(' ').skip(8));
    ranges
        .filter_map(range)
        .any(|(low, high)| (low..=high).contains(&slot))
}

fn range(text: &str) -> Option<(u16, u16)> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    Some((low.parse().ok()?, high.parse().ok()?))
}

/// Returns the slot of a hash tag: its CRC-16/XMODEM checksum modulo the number of slots.
fn slot(tag: &str) -> u16 {
    let shift = |crc: u16| {
        if crc & 0x8000 == 0 {
            crc << 1
        } else {
            crc << 1 ^ 0x1021
        }
    };
    let add = |crc: u16, byte: u8| (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| shift(crc));
    tag.bytes().fold(0, add) % 16_384
}
