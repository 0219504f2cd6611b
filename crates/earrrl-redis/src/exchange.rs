//! One request to Redis and back: a single call, but for a request over several slots of a Cluster.
//!
//! Those take two steps. Every slot is asked at once, and judges and stores its part as if the others
//! would pass; where one does not, what leaky rules stored in the others is taken back before the
//! denial is returned. A concurrent request may see such a charge: an error on the deny side only.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use earrrl::{Mode, Nanos};
use redis::Value;

use crate::algorithm::{Adjustment, flags};
use crate::convert::{Called, converting};
use crate::link::{Fault, Link};
use crate::reply::{self, Reply, ScriptVerdict, Seen};
use crate::request::{Request, time_argument};
use crate::shared::Shared;

/// How long a late answer is waited for before it is taken as never to come.
pub(crate) const LATEST: Duration = Duration::from_secs(60);

/// What Redis sees of a request, once it answers.
type Pending = Pin<Box<dyn Future<Output = Result<Vec<Seen>, Fault>> + Send>>;

/// Why there is no answer, and the calls that may be answered yet.
pub(crate) struct Missed {
    pub(crate) fault: Fault,
    pub(crate) late: Vec<Late>,
}

/// A call that is under way past its deadline.
pub(crate) struct Late {
    pub(crate) call: Pending,
    /// The charges that it is about, by their places in the request.
    pub(crate) places: Vec<usize>,
}

impl Shared {
    /// Asks Redis within the deadline.
    pub(crate) async fn ask(self: &Arc<Self>, request: &Arc<Request>) -> Result<Vec<Seen>, Missed> {
        let mut slots = request.by_slot();
        match slots.pop() {
            Some(places) if slots.is_empty() => self.ask_slot(request, places).await,
            Some(places) => {
                slots.push(places);
                self.ask_slots(request, slots).await
            }
            None => Err(Missed { fault: Fault::Left, late: Vec::new() }),
        }
    }

    /// Asks about the charges of one slot.
    async fn ask_slot(
        self: &Arc<Self>,
        request: &Arc<Request>,
        places: Vec<usize>,
    ) -> Result<Vec<Seen>, Missed> {
        let group = places.first().map_or(0, |place| request.asked[*place].group);
        let missed = |fault| Missed { fault, late: Vec::new() };
        let link = self.link(group).map_err(missed)?;
        let mut call: Pending =
            Box::pin(exchange(self.clone(), link, request.clone(), places.clone()));
        let fault = match tokio::time::timeout(self.options.deadline, &mut call).await {
            Ok(Ok(answer)) => {
                self.breakers.succeeded(group);
                return Ok(answer);
            }
            Ok(Err(fault)) => fault,
            Err(_) => {
                self.failed(group, &Fault::Late);
                return Err(Missed { fault: Fault::Late, late: vec![Late { call, places }] });
            }
        };
        self.failed(group, &fault);
        Err(missed(fault))
    }

    /// Asks about the charges of several slots, all or nothing.
    async fn ask_slots(
        self: &Arc<Self>,
        request: &Arc<Request>,
        slots: Vec<Vec<usize>>,
    ) -> Result<Vec<Seen>, Missed> {
        let calls = slots.iter().map(|places| {
            let (shared, request, places) = (self.clone(), request.clone(), places.clone());
            tokio::spawn(async move { shared.ask_slot(&request, places).await })
        });
        let calls: Vec<_> = calls.collect();
        let mut seen: Vec<Option<Seen>> = vec![None; request.asked.len()];
        let (mut fault, mut late) = (None, Vec::new());
        for (places, call) in slots.iter().zip(calls) {
            match call.await {
                Ok(Ok(parts)) => {
                    places.iter().zip(parts).for_each(|(place, part)| seen[*place] = Some(part));
                }
                Ok(Err(missed)) => {
                    late.extend(missed.late);
                    fault = Some(missed.fault);
                }
                Err(_) => fault = Some(Fault::Lost("a task was stopped".to_owned())),
            }
        }
        let passes = fault.is_none()
            && seen.iter().zip(&request.asked).all(|(seen, asked)| {
                let over = seen.as_ref().is_none_or(|seen| seen.verdict == ScriptVerdict::Over);
                !over || !asked.rule.rule.action().enforces()
            });
        if !passes {
            self.undo(request, &slots, &mut seen).await;
        }
        match fault {
            Some(fault) => Err(Missed { fault, late }),
            None => Ok(seen.into_iter().flatten().collect()),
        }
    }

    /// Takes back what leaky rules stored in slots that passed.
    async fn undo(
        self: &Arc<Self>,
        request: &Arc<Request>,
        slots: &[Vec<usize>],
        seen: &mut [Option<Seen>],
    ) {
        let mut tasks = Vec::new();
        for places in slots {
            let stored = stored(request, places, |place| seen[place].as_ref().map(|s| s.verdict));
            for place in stored.into_iter().filter(|place| !request.is_strict(*place)) {
                let Some(seen) = &mut seen[place] else { continue };
                seen.undone = true;
                tasks.push(tokio::spawn(take_back(self.clone(), request.clone(), place, seen.at)));
            }
        }
        for task in tasks {
            task.await.ok();
        }
    }
}

/// Takes one charge of a request back.
pub(crate) async fn take_back(shared: Arc<Shared>, request: Arc<Request>, place: usize, at: Nanos) {
    let asked = &request.asked[place];
    let back = Adjustment::take_back(Some(at), asked.cost);
    if let Err(fault) = shared.adjust(asked, back, request.now).await {
        tracing::warn!(why = fault.detail(), "a charge could not be taken back");
    }
}

/// The charges of one call that its script stored, from their verdicts.
pub(crate) fn stored(
    request: &Request,
    places: &[usize],
    verdict: impl Fn(usize) -> Option<ScriptVerdict>,
) -> Vec<usize> {
    let over = |place: usize| verdict(place).is_none_or(|verdict| verdict == ScriptVerdict::Over);
    let enforces = |place: usize| request.asked[place].rule.rule.action().enforces();
    let passes = places.iter().all(|place| !over(*place) || !enforces(*place));
    let stores = |place: usize| {
        let cost = request.asked[place].cost;
        let leaky = passes && !over(place);
        request.mode != Mode::Peek
            && !cost.is_zero()
            && verdict(place).is_some()
            && (request.is_strict(place) || leaky)
    };
    places.iter().copied().filter(|place| stores(*place)).collect()
}

/// Calls the script, and converts what it finds written under other parameters.
async fn exchange(
    shared: Arc<Shared>,
    link: Link,
    request: Arc<Request>,
    places: Vec<usize>,
) -> Result<Vec<Seen>, Fault> {
    let (shared, request, places) = (&*shared, &*request, &places[..]);
    converting(shared, link, |mut link| async move {
        let nonsense = || Fault::Record("the script's answer makes no sense".to_owned());
        match call(shared, &mut link, request, places).await?.ok_or_else(nonsense)? {
            Reply::Decided { time, mut seen } if seen.len() == places.len() => {
                let at = request.now.or(time).ok_or_else(nonsense)?;
                seen.iter_mut().for_each(|seen| seen.at = at);
                Ok(Called::Done(seen))
            }
            Reply::Decided { .. } => Err(nonsense()),
            Reply::Foreign { time, place } => {
                let asked = places.get(place).ok_or_else(nonsense)?;
                let now = request.now.or(time).ok_or_else(nonsense)?;
                Ok(Called::Foreign(&request.asked[*asked], now))
            }
        }
    })
    .await
}

async fn call(
    shared: &Shared,
    link: &mut Link,
    request: &Request,
    places: &[usize],
) -> Result<Option<Reply>, Fault> {
    let asked = || places.iter().map(|place| &request.asked[*place]);
    let flags = |place: usize| {
        let asked = &request.asked[place];
        flags(&asked.rule.rule, asked.cost, request.mode)
    };
    let time = time_argument(request.now);
    let keys: Vec<Vec<u8>> = asked().map(|asked| asked.key.clone()).collect();
    let (script, args) = match places {
        [one] => {
            let asked = &request.asked[*one];
            let head = time.into_iter().chain([flags(*one)]);
            let args = head.chain(asked.parameters(shared.options.linger)).collect();
            (shared.scripts.single(asked.rule.kind), vec![args])
        }
        _ => {
            let charge = |place: &usize| {
                let asked = &request.asked[*place];
                let head = [asked.rule.kind as u8, flags(*place)];
                head.into_iter().chain(asked.parameters(shared.options.linger)).collect()
            };
            let args = [time.to_vec()].into_iter().chain(places.iter().map(charge)).collect();
            (shared.scripts.several(asked().map(|asked| asked.rule.kind)), args)
        }
    };
    let Value::BulkString(bytes) = link.call(script, &keys, &args).await? else { return Ok(None) };
    Ok(if places.len() == 1 { reply::single(&bytes) } else { reply::several(&bytes) })
}
