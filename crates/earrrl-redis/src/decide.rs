//! Decisions by Redis: one call, or one a slot for a request whose keys are in several slots of a Cluster.
//!
//! In a Cluster, every slot is called at the same time, and judges and stores its part as if the
//! request passed in the other slots. If it does not, the charges of leaky rules in the other slots
//! are taken back before the denial is returned. A concurrent request may see such a charge and be
//! denied because of it.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Mode, Nanos};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::algorithm::{UNITS, flags};
use crate::batches::{BatchCall, PackedCharge, ReceiptPlace, Ticket};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::deliver::take_back;
use crate::hold_format as format;
use crate::reply::{Observation, Reply, ScriptVerdict};
use crate::request::Request;
use crate::send::{self, GRACE};
use crate::shared::Shared;
use crate::unsettled::Unanswered;

/// The greatest error in measuring [`GRACE`].
const SLACK: Duration = Duration::from_millis(500);

/// A request without an answer from every slot, and the calls that Redis may have executed.
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    pub(crate) unanswered: Vec<Unanswered>,
    /// The charges that Redis has stored and keeps, one bit each.
    pub(crate) kept: u64,
}

impl Failure {
    /// Returns the failure of a request of which Redis has executed nothing.
    pub(crate) fn all(fault: Fault) -> Self {
        Self {
            fault,
            unanswered: Vec::new(),
            kept: 0,
        }
    }
}

/// Returns what the scripts saw of each charge of a request, within the deadline.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
) -> Result<Vec<Observation>, Failure> {
    let slots = request.by_slot();
    match &slots[..] {
        [] => Err(Failure::all(Fault::Skipped)),
        [places] => ask_slot(shared, request, places).await,
        _ => ask_slots(shared, request, &slots).await,
    }
}

/// Decides the charges of one slot.
async fn ask_slot(
    shared: &Arc<Shared>,
    request: &Request,
    places: &[usize],
) -> Result<Vec<Observation>, Failure> {
    let (group, _) = request.group_and_slot(places);
    let link = match request.units {
        Some(_) => shared.connection.distant_link(group),
        None => shared.connection.link(group),
    };
    link.map_err(Failure::all)?;
    let ticket = Arc::new(Ticket::default());
    let ends = Instant::now() + 3 * request.patience + GRACE + SLACK;
    let call = exchange(shared, None, request, places, &ticket);
    let answer = timeout(request.patience, call)
        .await
        .unwrap_or(Err(Fault::Late));
    // A late call for units is reported by its request, which was decided without it.
    if request.units.is_none() || !matches!(answer, Err(Fault::Late)) {
        shared.connection.report(group, &answer);
    }
    match answer {
        Ok(observed) => {
            if let Some(ReceiptPlace { receipt, .. }) = ticket.receipt() {
                let verdict =
                    |place| Some(observed[places.iter().position(|at| *at == place)?].verdict);
                receipt.answered(!stored(request, places, verdict).is_empty());
            }
            Ok(observed)
        }
        Err(fault) => {
            let place = ticket
                .give_up()
                .filter(|_| matches!(fault, Fault::Late | Fault::Lost(_)));
            let unanswered = place
                .filter(|_| request.may_store(places))
                .map(|place| Unanswered {
                    place,
                    places: places.to_vec(),
                    ends,
                });
            Err(Failure {
                unanswered: unanswered.into_iter().collect(),
                ..Failure::all(fault)
            })
        }
    }
}

/// Decides the charges of several slots; stores all of them or none.
async fn ask_slots(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    slots: &[Vec<usize>],
) -> Result<Vec<Observation>, Failure> {
    let calls = slots.iter().map(|places| {
        let shared = shared.clone();
        let request = request.clone();
        let places = places.clone();
        tokio::spawn(async move { ask_slot(&shared, &request, &places).await })
    });
    let calls: Vec<_> = calls.collect();
    let mut observed: Vec<Option<Observation>> = vec![None; request.charges.len()];
    let mut fault = None;
    let mut unanswered = Vec::new();
    for (places, call) in slots.iter().zip(calls) {
        match call.await {
            Ok(Ok(parts)) => {
                places
                    .iter()
                    .zip(parts)
                    .for_each(|(place, part)| observed[*place] = Some(part));
            }
            Ok(Err(failure)) => {
                unanswered.extend(failure.unanswered);
                fault = Some(failure.fault);
            }
            Err(_) => fault = Some(Fault::Lost("a task was stopped".to_owned())),
        }
    }
    let passes = fault.is_none()
        && observed
            .iter()
            .zip(&request.charges)
            .all(|(observed, charge)| {
                let over = observed
                    .as_ref()
                    .is_none_or(|observed| observed.verdict == ScriptVerdict::Over);
                !over || !charge.rule.rule.action().enforces()
            });
    let kept = match passes {
        true => 0,
        false => undo(shared, request, slots, &mut observed).await,
    };
    match fault {
        None => Ok(observed.into_iter().flatten().collect()),
        Some(fault) => Err(Failure {
            fault,
            unanswered,
            kept,
        }),
    }
}

/// Takes back the charges of leaky rules in the slots that let the request pass. Returns the charges that Redis stored
/// and keeps, one bit each.
async fn undo(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    slots: &[Vec<usize>],
    observed: &mut [Option<Observation>],
) -> u64 {
    let mut kept = 0;
    let mut tasks = Vec::new();
    for places in slots {
        let verdict = |place: usize| observed[place].as_ref().map(|one| one.verdict);
        for place in stored(request, places, verdict) {
            let Some(observed) = observed[place]
                .as_ref()
                .filter(|_| !request.is_strict(place))
            else {
                kept |= 1 << place;
                continue;
            };
            let shared = shared.clone();
            let request = request.clone();
            let at = observed.at;
            let back = async move {
                take_back(&shared, &request.charges[place], Some(at), request.now).await
            };
            tasks.push((place, tokio::spawn(back)));
        }
    }
    for (place, task) in tasks {
        if let Ok(Err(Fault::Refused(_))) = task.await {
            kept |= 1 << place;
        } else if let Some(observed) = &mut observed[place] {
            observed.undone = true;
        }
    }
    kept
}

/// Returns the charges of one call that its script stored, given its verdicts.
pub(crate) fn stored(
    request: &Request,
    places: &[usize],
    verdict: impl Fn(usize) -> Option<ScriptVerdict>,
) -> Vec<usize> {
    let over = |place: usize| verdict(place).is_none_or(|verdict| verdict == ScriptVerdict::Over);
    let enforces = |place: usize| request.charges[place].rule.rule.action().enforces();
    let passes = places
        .iter()
        .all(|place| !over(*place) || !enforces(*place));
    let stores = |place: usize| {
        let cost = request.charges[place].cost;
        let leaky = passes && !over(place);
        request.mode != Mode::Peek
            && !cost.is_zero()
            && verdict(place).is_some()
            && (request.is_strict(place) || leaky)
    };
    places
        .iter()
        .copied()
        .filter(|place| stores(*place))
        .collect()
}

/// Calls the script, a second time if Redis's clock was set since this node last saw its time. Returns what it saw of
/// each charge. With a link of its own, the call does not wait for other calls.
pub(crate) async fn exchange(
    shared: &Arc<Shared>,
    own_link: Option<&Link>,
    request: &Request,
    places: &[usize],
    ticket: &Arc<Ticket>,
) -> Result<Vec<Observation>, Fault> {
    let (group, slot) = request.group_and_slot(places);
    let charge = |place: &usize, now: Nanos| {
        let charge = &request.charges[*place];
        let of_units = request.units.map_or(0, |_| UNITS);
        PackedCharge {
            kind: charge.rule.kind,
            flags: flags(&charge.rule.rule, charge.cost, request.mode) | of_units,
            key: charge.key.clone(),
            parameters: charge
                .rule
                .parameters(charge.cost, shared.options.linger, 1.0, now),
            units: request.units,
        }
    };
    for _ in 0..2 {
        let now = shared.clocks.present(group, request.now);
        let (answer, answered) = oneshot::channel();
        let call = BatchCall {
            ticket: ticket.clone(),
            answer,
            now: request.now,
            patience: request.patience,
            slot,
            charges: places.iter().map(|place| charge(place, now)).collect(),
            hold: request
                .hold
                .map(|hold| format::pack(shared, request, hold, places)),
        };
        match own_link {
            Some(link) => send::send(shared, group, link, vec![vec![call]]).await,
            None => send::call(shared, group, call),
        }
        // If the sender was dropped, the deadline has passed.
        match answered.await.map_err(|_| Fault::Late)?? {
            Some(Reply::Expired { .. }) => {}
            Some(Reply::Decided { time, mut observed }) if observed.len() == places.len() => {
                let at = request.now.or(time).ok_or_else(Fault::nonsense)?;
                observed.iter_mut().for_each(|observed| observed.at = at);
                return Ok(observed);
            }
            _ => return Err(Fault::nonsense()),
        }
    }
    Err(Fault::clock())
}
