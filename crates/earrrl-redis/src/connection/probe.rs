//! The probe: a decision of the engine's own that shows whether Redis can be used.

use earrrl::{Cost, EngineError, Mode, Rule};
use redis::Value;

use crate::algorithm::{self, Kind, Packed, Terms};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::connection::receipt::Receipt;
use crate::connection::script::{Script, Scripts};

/// A limit that the probe never reaches.
const RULE: &str = "fixed-window 9000000/1s";

/// A decision of one rule, with a key in each group.
pub(crate) struct Probe {
    kind: Kind,
    argument: Vec<u8>,
    keys: Vec<Vec<u8>>,
}

impl Probe {
    pub(crate) fn new(keys: Vec<Vec<u8>>) -> Result<Self, EngineError> {
        let rule: Rule = RULE.parse()?;
        let request =
            Terms { rule: &rule, cost: Cost::ONE, sign: 1.0, linger: std::time::Duration::ZERO };
        let mut argument = Packed::default();
        // The time: Redis's own.
        argument.numbers(&[-1.0]);
        argument.whole(algorithm::flags(&rule, Cost::ONE, Mode::Check).into(), 1);
        // No latest time and no receipt.
        argument.numbers(&[f64::INFINITY]);
        argument.0.extend(Receipt::argument(None));
        argument.0.extend(algorithm::pack(&request, algorithm::tag(rule.limit())));
        Ok(Self { kind: Kind::of(rule.limit()), argument: argument.0, keys })
    }

    /// Makes a decision that stores something: a Redis that is out of memory or read-only answers everything else.
    pub(crate) async fn ask(
        &self,
        scripts: &Scripts,
        mut link: Link,
        group: usize,
    ) -> Result<(), Fault> {
        let script: &Script = scripts.single(self.kind);
        let argument = std::slice::from_ref(&self.argument);
        match link.call(script, std::slice::from_ref(&self.keys[group]), argument).await? {
            Value::BulkString(_) => Ok(()),
            _ => Err(Fault::Refused("the script's answer makes no sense".to_owned())),
        }
    }
}
