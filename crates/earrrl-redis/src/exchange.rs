//! One request to Redis and back: a single call, but for a request over several slots of a Cluster.
//!
//! Those take two steps. Every slot is asked at once, and judges and stores its part as if the others
//! would pass; where one does not, what leaky rules stored in the others is taken back before the
//! denial is returned. A concurrent request may see such a charge: an error on the deny side only.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Mode, Nanos};
use redis::{RedisResult, Value};
use tokio::time::Instant;

use crate::algorithm::{Adjustment, flags, micros};
use crate::convert::{Called, converting};
use crate::link::{Fault, Link};
use crate::near::offset::later;
use crate::receipt::Receipt;
use crate::redirect::is_moving;
use crate::reply::{self, Reply, ScriptVerdict, Seen};
use crate::request::{Request, time_argument};
use crate::shared::Shared;
use crate::unsettled::Unanswered;

/// How long after its deadline Redis may still execute a call. What comes later, since its server was stopped or
/// a network held it back, does nothing.
const GRACE: Duration = Duration::from_secs(1);
/// By how much more the end of that may be misjudged.
const SLACK: Duration = Duration::from_millis(500);

/// Why there is no answer, and what Redis may have done.
pub(crate) struct Missed {
    pub(crate) fault: Fault,
    pub(crate) unanswered: Vec<Unanswered>,
    /// Charges that Redis has stored and keeps, one bit each.
    pub(crate) kept: u64,
}

impl Missed {
    /// Redis has done nothing.
    fn all(fault: Fault) -> Self {
        Self { fault, unanswered: Vec::new(), kept: 0 }
    }
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
            None => Err(Missed::all(Fault::Left)),
        }
    }

    /// Asks about the charges of one slot.
    async fn ask_slot(
        self: &Arc<Self>,
        request: &Request,
        places: Vec<usize>,
    ) -> Result<Vec<Seen>, Missed> {
        let (group, slot) = request.group_and_slot(&places);
        let link = self.link(group).map_err(Missed::all)?;
        let receipt = request.may_store(&places).then(|| self.receipts.take(slot)).flatten();
        let deadline = self.options.deadline;
        let (sent, ends) = (self.clock.now(), Instant::now() + 3 * deadline + GRACE + SLACK);
        let call = exchange(self, link, request, &places, receipt.as_ref());
        let answer = self.within(deadline, group, call).await;
        if let (Ok(seen), Some(receipt)) = (&answer, &receipt) {
            let verdict = |place| Some(seen[places.iter().position(|at| *at == place)?].verdict);
            receipt.answered(!stored(request, &places, verdict).is_empty());
        }
        answer.map_err(|fault| {
            let receipt = receipt.filter(|_| matches!(fault, Fault::Late | Fault::Lost(_)));
            let unanswered = receipt.map(|receipt| Unanswered { receipt, places, sent, ends });
            Missed { unanswered: unanswered.into_iter().collect(), ..Missed::all(fault) }
        })
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
        let (mut fault, mut unanswered) = (None, Vec::new());
        for (places, call) in slots.iter().zip(calls) {
            match call.await {
                Ok(Ok(parts)) => {
                    places.iter().zip(parts).for_each(|(place, part)| seen[*place] = Some(part));
                }
                Ok(Err(missed)) => {
                    unanswered.extend(missed.unanswered);
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
        let Some(fault) = fault else { return Ok(seen.into_iter().flatten().collect()) };
        Err(Missed { fault, unanswered, kept: kept(request, &slots, &seen) })
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
                let Some(seen) = &seen[place] else { continue };
                let back = take_back(self.clone(), request.clone(), place, Some(seen.at));
                tasks.push((place, tokio::spawn(back)));
            }
        }
        for (place, task) in tasks {
            let is_kept = matches!(task.await, Ok(Err(Fault::Left | Fault::Refused(_))));
            if let Some(seen) = &mut seen[place] {
                seen.undone = !is_kept;
            }
        }
    }
}

/// What Redis has stored of the slots that answered, and was not taken back.
fn kept(request: &Request, slots: &[Vec<usize>], seen: &[Option<Seen>]) -> u64 {
    let verdict = |place: usize| seen[place].as_ref().map(|seen| seen.verdict);
    let stored = slots.iter().flat_map(|places| stored(request, places, verdict));
    let kept = stored.filter(|place| seen[*place].as_ref().is_some_and(|seen| !seen.undone));
    kept.fold(0, |bits, place| bits | 1 << place)
}

/// Takes one charge of a request back.
pub(crate) async fn take_back(
    shared: Arc<Shared>,
    request: Arc<Request>,
    place: usize,
    at: Option<Nanos>,
) -> Result<(), Fault> {
    let asked = &request.asked[place];
    let back = Adjustment::take_back(at, asked.cost);
    let taken_back = shared.adjust(asked, back, request.now).await;
    if let Err(fault) = &taken_back {
        tracing::warn!(why = fault.detail(), "a charge could not be taken back");
    }
    taken_back
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
    shared: &Arc<Shared>,
    link: Link,
    request: &Request,
    places: &[usize],
    receipt: Option<&Receipt>,
) -> Result<Vec<Seen>, Fault> {
    let nonsense = || Fault::Record("the script's answer makes no sense".to_owned());
    converting(shared, link, |mut link| async move {
        match in_time(shared, &mut link, request, places, receipt).await?.ok_or_else(nonsense)? {
            Reply::Decided { time, mut seen } if seen.len() == places.len() => {
                let at = request.now.or(time).ok_or_else(nonsense)?;
                seen.iter_mut().for_each(|seen| seen.at = at);
                Ok(Called::Done(seen))
            }
            Reply::Foreign { time, place } => {
                let asked = places.get(place).ok_or_else(nonsense)?;
                let now = request.now.or(time).ok_or_else(nonsense)?;
                Ok(Called::Foreign(&request.asked[*asked], now))
            }
            Reply::Decided { .. } | Reply::Past { .. } => Err(nonsense()),
        }
    })
    .await
}

/// Calls it, and again where Redis's clock was set since it was last seen.
async fn in_time(
    shared: &Shared,
    link: &mut Link,
    request: &Request,
    places: &[usize],
    receipt: Option<&Receipt>,
) -> Result<Option<Reply>, Fault> {
    let (group, slot) = request.group_and_slot(places);
    let offset = &shared.near.offsets[group];
    for _ in 0..2 {
        let sent = shared.clock.now();
        let latest = later(sent, offset.get()) + shared.options.deadline + GRACE;
        let reply = match call(shared, link, request, places, (latest, receipt)).await {
            Err(error) if receipt.is_some() && is_moving(&error) => {
                shared.receipts.moves(slot);
                call(shared, link, request, places, (latest, None)).await
            }
            reply => reply,
        };
        let reply = reply?;
        let (Some(Reply::Decided { time: Some(at), .. }) | Some(Reply::Past { time: at })) = &reply
        else {
            return Ok(reply);
        };
        offset.learn(*at, sent, shared.clock.now());
        if let Some(Reply::Decided { .. }) = reply {
            return Ok(reply);
        }
    }
    Err(Fault::Refused("its clock is set all the time".to_owned()))
}

async fn call(
    shared: &Shared,
    link: &mut Link,
    request: &Request,
    places: &[usize],
    (latest, receipt): (Nanos, Option<&Receipt>),
) -> RedisResult<Option<Reply>> {
    let asked = || places.iter().map(|place| &request.asked[*place]);
    let flags = |place: usize| {
        let asked = &request.asked[place];
        flags(&asked.rule.rule, asked.cost, request.mode)
    };
    let parameters = |place: usize| request.asked[place].parameters(shared.options.linger);
    let (time, latest) = (time_argument(request.now), micros(latest).to_le_bytes());
    let mut keys: Vec<Vec<u8>> = asked().map(|asked| asked.key.clone()).collect();
    if shared.options.cluster {
        // A node that has only some of a slot's keys must know that this is one of them.
        keys.extend(receipt.map(|receipt| receipt.key.as_bytes().to_vec()));
    }
    let (prolongs, receipt) = (Receipt::flags(receipt), Receipt::argument(receipt));
    let head = |flags| [&time[..], &[flags | prolongs], &latest, &receipt].concat();
    let (script, args) = match places {
        [one] => {
            let argument = [head(flags(*one)), parameters(*one)].concat();
            (shared.scripts.single(request.asked[*one].rule.kind), vec![argument])
        }
        _ => {
            let charge = |place: &usize| {
                let head = [request.asked[*place].rule.kind as u8, flags(*place)];
                [&head[..], &parameters(*place)].concat()
            };
            let args = [head(0)].into_iter().chain(places.iter().map(charge)).collect();
            (shared.scripts.several(asked().map(|asked| asked.rule.kind)), args)
        }
    };
    let Value::BulkString(bytes) = link.call(script, &keys, &args).await? else { return Ok(None) };
    Ok(if places.len() == 1 { reply::single(&bytes) } else { reply::several(&bytes) })
}
