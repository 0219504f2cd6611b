//! Medians, and ratios to one of the contenders, as Markdown tables.

use std::collections::BTreeMap;

#[derive(Default)]
pub struct Report {
    compared_with: &'static str,
    /// In the order in which they came.
    names: Vec<String>,
    tables: Vec<String>,
    columns: Vec<(String, usize)>,
    times: BTreeMap<(String, String, usize), Vec<f64>>,
    bytes: BTreeMap<(String, String, usize), f64>,
}

impl Report {
    pub fn compared_with(name: &'static str) -> Self {
        Self {
            compared_with: name,
            ..Self::default()
        }
    }

    pub fn time(&mut self, name: &str, kind: &str, clients: usize, way: &str, nanos: f64) {
        let table = format!("{kind}, {way}");
        remember(&mut self.names, name.into());
        remember(&mut self.tables, table.clone());
        remember(&mut self.columns, (table.clone(), clients));
        let times = self.times.entry((name.into(), table, clients)).or_default();
        times.push(nanos);
    }

    pub fn bytes(&mut self, name: &str, kind: &str, clients: usize, bytes: f64) {
        self.bytes
            .insert((name.into(), kind.into(), clients), bytes);
    }

    fn median(&self, name: &str, table: &str, clients: usize) -> Option<f64> {
        let mut times = self
            .times
            .get(&(name.into(), table.into(), clients))?
            .clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }

    pub fn print(&self) {
        for table in &self.tables {
            let columns = self.columns.iter().filter(|(of, _)| of == table);
            let sizes: Vec<usize> = columns.map(|(_, clients)| *clients).collect();
            println!("\n### ns a decision: {table}\n");
            header(&sizes);
            for name in &self.names {
                let cells: Vec<String> = sizes
                    .iter()
                    .map(|size| self.cell(name, table, *size))
                    .collect();
                if cells.iter().any(|cell| !cell.is_empty()) {
                    println!("| {name} | {} |", cells.join(" | "));
                }
            }
        }
        self.print_bytes();
    }

    /// The median, and how many times as fast as the one that is compared with.
    fn cell(&self, name: &str, table: &str, clients: usize) -> String {
        let Some(median) = self.median(name, table, clients) else {
            return String::new();
        };
        match self.median(self.compared_with, table, clients) {
            Some(compared) => format!("{median:.1} ({:.2}×)", compared / median),
            None => format!("{median:.1}"),
        }
    }

    fn print_bytes(&self) {
        if self.bytes.is_empty() {
            return;
        }
        println!("\n### bytes a client\n");
        let mut sizes: Vec<usize> = self.bytes.keys().map(|(_, _, clients)| *clients).collect();
        sizes.retain(|clients| *clients >= 1_000_000);
        sizes.sort_unstable();
        sizes.dedup();
        for kind in ["u64 keys", "20-byte strings"] {
            println!("{kind}:\n");
            header(&sizes);
            for name in &self.names {
                let cell = |size: &usize| {
                    let bytes = self.bytes.get(&(name.clone(), kind.into(), *size));
                    bytes.map_or(String::new(), |bytes| format!("{bytes:.1}"))
                };
                let cells: Vec<String> = sizes.iter().map(cell).collect();
                if cells.iter().any(|cell| !cell.is_empty()) {
                    println!("| {name} | {} |", cells.join(" | "));
                }
            }
            println!();
        }
    }
}

fn header(sizes: &[usize]) {
    let clients: Vec<String> = sizes.iter().map(|size| format!("{size} clients")).collect();
    println!(
        "| | {} |\n|---|{}",
        clients.join(" | "),
        "---:|".repeat(sizes.len())
    );
}

fn remember<T: PartialEq>(known: &mut Vec<T>, item: T) {
    if !known.contains(&item) {
        known.push(item);
    }
}
