//! The tables of all rules that were ever near, by the rules' ids. Tables are never removed, so a
//! look-up needs neither a lock nor a reference count.

use std::array::from_fn;
use std::sync::{Arc, OnceLock};

use earrrl::RuleId;

use super::table::ClientTable;

type Block = Box<[OnceLock<Arc<ClientTable>>]>;

/// Blocks of 1, 2, 4, … tables, each allocated when its first table is added.
#[derive(Debug)]
pub(crate) struct Tables([OnceLock<Block>; 32]);

impl Default for Tables {
    fn default() -> Self {
        Self(from_fn(|_| OnceLock::new()))
    }
}

impl Tables {
    #[inline]
    pub(crate) fn get(&self, rule: RuleId) -> Option<&ClientTable> {
        let (block, place) = place(rule);
        self.0[block].get()?[place].get().map(|table| &**table)
    }

    pub(crate) fn get_or(
        &self,
        rule: RuleId,
        table: impl FnOnce() -> ClientTable,
    ) -> Arc<ClientTable> {
        let (block, place) = place(rule);
        let vacant = || (0..1usize << block).map(|_| OnceLock::new()).collect();
        self.0[block].get_or_init(vacant)[place]
            .get_or_init(|| Arc::new(table()))
            .clone()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<ClientTable>> {
        let blocks = self.0.iter().filter_map(OnceLock::get);
        blocks.flat_map(|block| block.iter().filter_map(OnceLock::get))
    }
}

/// Returns the block of a rule's table, and the table's index in the block.
#[inline]
fn place(RuleId(number): RuleId) -> (usize, usize) {
    let number = number.saturating_add(1);
    let block = number.ilog2();
    (block as usize, (number - (1 << block)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use earrrl::table::KeyHasher;

    #[test]
    fn every_rule_has_a_table_of_its_own() {
        let tables = Tables::default();
        assert!((0..200).all(|rule| tables.get(RuleId(rule)).is_none()));
        let new = || ClientTable::new(1, KeyHasher::with_key(&[7; 16]));
        let made: Vec<_> = (0..200)
            .step_by(3)
            .map(|rule| tables.get_or(RuleId(rule), new))
            .collect();
        for (table, rule) in made.iter().zip((0..200).step_by(3)) {
            assert!(std::ptr::eq(
                &raw const **table,
                tables.get(RuleId(rule)).unwrap()
            ));
            assert!(tables.get(RuleId(rule + 1)).is_none());
        }
        assert_eq!(tables.iter().count(), made.len());
        assert!(tables.get(RuleId(u32::MAX)).is_none());
    }
}
