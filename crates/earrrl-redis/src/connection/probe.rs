//! The probe: a decision under a rule of the engine's own, which shows if Redis can be used.

use std::time::Duration;

use earrrl::{Cost, EngineError, Mode, Rule};
use redis::{RedisResult, Value};

use crate::algorithm::{self, AlgorithmKind, Packed, Terms};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::connection::receipt::Receipt;
use crate::connection::redirect::is_moving;
use crate::connection::script::Scripts;

/// The probe's rule, whose limit is never reached.
const RULE: &str = "fixed-window 9000000/1s";

/// A decision under one rule, with a key in each breaker's group.
pub(crate) struct Probe {
    kind: AlgorithmKind,
    flags: u8,
    /// The packed parameters of the rule.
    parameters: Vec<u8>,
    keys: Vec<Vec<u8>>,
}

impl Probe {
    pub(crate) fn new(keys: Vec<Vec<u8>>) -> Result<Self, EngineError> {
        let rule: Rule = RULE.parse()?;
        let request = Terms {
            rule: &rule,
            cost: Cost::ONE,
            sign: 1.0,
            linger: Duration::ZERO,
        };
        let parameters = algorithm::pack(&request);
        let flags = algorithm::flags(&rule, Cost::ONE, Mode::Check);
        Ok(Self {
            kind: AlgorithmKind::of(rule.limit()),
            flags,
            parameters,
            keys,
        })
    }

    /// Returns the probe's key in a group.
    pub(crate) fn key(&self, group: usize) -> &[u8] {
        &self.keys[group]
    }

    /// Makes a decision that stores a state and a receipt. A Redis that is out of memory,
    /// read-only, or does not permit receipts would answer commands that store nothing.
    pub(crate) async fn ask(
        &self,
        scripts: &Scripts,
        mut link: Link,
        group: usize,
        receipt: Option<Receipt>,
    ) -> Result<(), Fault> {
        let answer = match self.call(scripts, &mut link, group, receipt.as_ref()).await {
            Err(error) if is_moving(&error) => self.call(scripts, &mut link, group, None).await,
            answer => answer.inspect(|_| receipt.iter().for_each(|receipt| receipt.answered(true))),
        };
        match answer? {
            Value::BulkString(_) => Ok(()),
            _ => Err(Fault::Refused(
                "the script's answer makes no sense".to_owned(),
            )),
        }
    }

    async fn call(
        &self,
        scripts: &Scripts,
        link: &mut Link,
        group: usize,
        receipt: Option<&Receipt>,
    ) -> RedisResult<Value> {
        let mut argument = Packed::default();
        // A time below zero stands for Redis's own time.
        argument.numbers(&[-1.0]);
        argument.whole((self.flags | Receipt::flags(receipt)).into(), 1);
        // Infinity stands for no latest time at which the call may be executed.
        argument.numbers(&[f64::INFINITY]);
        argument.0.extend(Receipt::argument(receipt));
        argument.0.extend(&self.parameters);
        let receipts = receipt.map(|receipt| receipt.key.as_bytes().to_vec());
        let keys: Vec<_> = [self.keys[group].clone()]
            .into_iter()
            .chain(receipts)
            .collect();
        link.call(scripts.single(self.kind), &keys, &[argument.0])
            .await
    }
}
