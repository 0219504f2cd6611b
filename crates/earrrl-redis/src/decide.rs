//! Decisions by Redis: one call, or one a slot for a request whose keys are in several slots of a Cluster.
//!
//! In a Cluster, every slot is called at the same time, and judges and stores its part as if the
//! request passed in the other slots. If it does not, the charges of leaky rules in the other slots
//! are taken back before the denial is returned. A concurrent request may see such a charge and be
//! denied because of it.

use std::sync::Arc;
use std::time::Duration;

use earrrl::Nanos;
use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::algorithm::{UNITS, flags};
use crate::batches::{BatchCall, PackedCharge, ReceiptPlace, Ticket};
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::deliver::take_back;
use crate::hold_format as format;
use crate::reply::{Observation, Reply, ScriptVerdict};
use crate::request::{KeyedCharge, Request};
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
    let group = request.charges[places[0]].group;
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
    let calls = slots.iter().map(|places| ask_slot(shared, request, places));
    let answers = join_all(calls).await;
    let mut observed: Vec<Option<Observation>> = vec![None; request.charges.len()];
    let mut fault = None;
    let mut unanswered = Vec::new();
    for (places, answer) in slots.iter().zip(answers) {
        match answer {
            Ok(parts) => {
                places
                    .iter()
                    .zip(parts)
                    .for_each(|(place, part)| observed[*place] = Some(part));
            }
            Err(failure) => {
                unanswered.extend(failure.unanswered);
                fault = Some(failure.fault);
            }
        }
    }
    let verdict = |place: usize| observed[place].as_ref().map(|one| one.verdict);
    let passes = slots.iter().all(|places| passes(request, places, verdict));
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
    let mut backs = Vec::new();
    for places in slots {
        let verdict = |place: usize| observed[place].as_ref().map(|one| one.verdict);
        for place in stored(request, places, verdict) {
            let undone = observed[place]
                .as_ref()
                .filter(|_| !request.is_strict(place));
            let Some(observed) = undone else {
                kept |= 1 << place;
                continue;
            };
            let charge = &request.charges[place];
            let back = take_back(shared, charge, Some(observed.at), request.now);
            backs.push(async move { (place, back.await) });
        }
    }
    for (place, outcome) in join_all(backs).await {
        if let Err(Fault::Refused(_)) = outcome {
            kept |= 1 << place;
        } else if let Some(observed) = &mut observed[place] {
            observed.undone = true;
        }
    }
    kept
}

/// Returns true if no enforcing rule of these charges is over its limit. A charge without a verdict counts as one that
/// is over it.
fn passes(
    request: &Request,
    places: &[usize],
    verdict: impl Fn(usize) -> Option<ScriptVerdict>,
) -> bool {
    places.iter().all(|&place| {
        !is_over(verdict(place)) || !request.charges[place].rule.rule.action().enforces()
    })
}

fn is_over(verdict: Option<ScriptVerdict>) -> bool {
    verdict.is_none_or(|verdict| verdict == ScriptVerdict::Over)
}

/// Returns the charges of one call that its script stored, given its verdicts.
fn stored(
    request: &Request,
    places: &[usize],
    verdict: impl Fn(usize) -> Option<ScriptVerdict>,
) -> Vec<usize> {
    let passes = passes(request, places, &verdict);
    let stores = |place: &usize| {
        let verdict = verdict(*place);
        verdict.is_some()
            && request.may_store(&[*place])
            && (request.is_strict(*place) || passes && !is_over(verdict))
    };
    places.iter().copied().filter(stores).collect()
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
    let KeyedCharge { slot, group, .. } = request.charges[places[0]];
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
