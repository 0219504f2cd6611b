//! What nodes that decide by themselves tell Redis, and are told.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, Nanos, State};
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::client::{Call, Told};
use super::table::Table;
use super::{lease, offset};
use crate::algorithm::{self, Adjustment, Answers, Packed, micros};
use crate::convert::{CONVERSIONS, convert};
use crate::link::{Fault, Link};
use crate::reply::{self, Reply};
use crate::request::{AskedCharge, Request};
use crate::rules::PreparedRule;
use crate::shared::Shared;
use crate::status::count;

/// Clients in one write, and writes under way.
const AT_ONCE: usize = 64;
const UNDER_WAY: usize = 16;
/// How long an answer to them is waited for. Nothing is lost then, and nothing counts twice.
const PATIENCE: Duration = Duration::from_secs(2);
/// Adjustments of one client in one call; of a log that has more, neighbours are merged.
const ADJUSTMENTS: usize = 256;
/// How often a node says that it is alive, and how long it counts as such.
const BEAT: Duration = Duration::from_secs(1);
const ALIVE: Duration = Duration::from_secs(10);

/// Exchanges the clients of whom something was decided here, again and again.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut beat: Option<Instant> = None;
    loop {
        sleep(shared.options.sync).await;
        // By a caller's time, clients are exchanged before their requests are decided.
        if shared.last_given().is_some() {
            continue;
        }
        let rules: Vec<_> =
            shared.rules.all().into_iter().filter(|rule| rule.near.is_some()).collect();
        if rules.is_empty() {
            continue;
        }
        if shared.options.nodes.is_none() && beat.is_none_or(|beat| beat.elapsed() >= BEAT) {
            beat = Some(Instant::now());
            heartbeat(&shared).await;
        }
        let mut whole = true;
        for rule in rules {
            whole &= exchange_all(&shared, &rule).await;
        }
        if whole {
            shared.near.exchanged(shared.clock.now());
        }
    }
}

/// Says that this node is alive, and hears how many are.
async fn heartbeat(shared: &Shared) {
    let key = shared.keys.nodes().into_bytes();
    let Ok(mut link) = shared.link(shared.group(&key)) else { return };
    let args = [shared.near.node.to_vec(), ALIVE.as_millis().to_string().into_bytes()];
    let keys = [key];
    let call = link.call(&shared.scripts.nodes, &keys, &args);
    if let Ok(Ok(Value::Int(nodes))) = timeout(PATIENCE, call).await {
        shared.near.set_nodes(u32::try_from(nodes).unwrap_or(1));
    }
}

/// Answers whether all were exchanged.
async fn exchange_all(shared: &Arc<Shared>, rule: &Arc<PreparedRule>) -> bool {
    let Some(table) = &rule.near else { return true };
    if shared.breakers.open_groups() == shared.breakers.groups().len() {
        return false;
    }
    let Some(link) = shared.any_link() else { return false };
    let (mut tasks, mut whole) = (JoinSet::new(), true);
    for keys in table.listed().chunks(AT_ONCE) {
        if tasks.len() >= UNDER_WAY {
            whole &= matches!(tasks.join_next().await, Some(Ok(true)));
        }
        let asked = keys.iter().map(|key| {
            shared.asked(rule.clone(), &Charge { rule: rule.id, key, cost: Cost::ZERO }, 0)
        });
        tasks.spawn(exchange_some(shared.clone(), link.clone(), asked.collect()));
    }
    while let Some(task) = tasks.join_next().await {
        whole &= matches!(task, Ok(true));
    }
    whole
}

/// Exchanges some clients in one write. Those whose exchange fails are on the list again.
async fn exchange_some(shared: Arc<Shared>, mut link: Link, all: Vec<AskedCharge>) -> bool {
    let now = None;
    let mut clients: Vec<(AskedCharge, Call, Cmd)> = Vec::with_capacity(all.len());
    let mut again = Vec::new();
    for asked in all {
        let call = (!shared.breakers.is_open(asked.group))
            .then(|| begin(&shared, &asked, Cost::ZERO, now));
        match call {
            Some(Some((call, keys, args))) => {
                let script = shared.scripts.near(asked.rule.kind);
                clients.push((asked, call, Link::command("EVALSHA", &script.hash, &keys, &args)));
            }
            Some(None) => {}
            None => again.push(asked),
        }
    }
    let sent = shared.now(now);
    let commands: Vec<_> = clients.iter().map(|(_, _, command)| command).collect();
    let answers = timeout(PATIENCE, link.send_all(&commands)).await.unwrap_or_default();
    let mut answers = answers.into_iter();
    for (asked, call, _) in clients {
        let answer = answers.next();
        let done = answer.map(|answer| finish(&shared, &asked, &call, answer, sent, now));
        match done {
            Some(Ok(())) => count(&shared.counters.exchanged),
            Some(Err(Unfinished::Foreign(at))) => {
                convert(&shared, &mut link, &asked, at).await.ok();
                again.push(asked);
            }
            Some(Err(Unfinished::Unknown)) => {
                link.load(std::iter::once(shared.scripts.near(asked.rule.kind))).await;
                again.push(asked);
            }
            Some(Err(Unfinished::Failed(Fault::Record(why)))) => {
                shared.failed(asked.group, &Fault::Record(why));
                shared.with_near(&asked, now, |client, _| client.give_up());
                count(&shared.counters.not_handed_over);
            }
            Some(Err(Unfinished::Failed(fault))) => {
                shared.failed(asked.group, &fault);
                again.push(asked);
            }
            None => again.push(asked),
        }
    }
    again.iter().for_each(|asked| {
        shared.with_near(asked, now, |client, _| client.touched = true);
    });
    again.is_empty()
}

/// What is unsent of a request's clients goes before it.
pub(crate) async fn send_first(shared: &Arc<Shared>, request: &Request) {
    let mut tasks = JoinSet::new();
    for asked in &request.asked {
        if shared.with_near(asked, request.now, |client, _| client.owes()) == Some(true) {
            let (shared, asked, now) = (shared.clone(), asked.clone(), request.now);
            tasks.spawn(async move { ask(&shared, &asked, Cost::ZERO, now).await });
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Exchanges one client now, within the deadline, and claims what a request takes.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    asked: &AskedCharge,
    cost: Cost,
    now: Option<Nanos>,
) -> Result<(), Fault> {
    let link = shared.link(asked.group)?;
    let _waits = asked.rule.near.as_deref().map(|table| Waits::new(table, asked, cost));
    let call = exchange_one(shared, link, asked, cost, now);
    shared.within(shared.options.deadline, asked.group, call).await
}

async fn exchange_one(
    shared: &Shared,
    mut link: Link,
    asked: &AskedCharge,
    cost: Cost,
    now: Option<Nanos>,
) -> Result<(), Fault> {
    let script = shared.scripts.near(asked.rule.kind);
    for _ in 0..CONVERSIONS {
        let Some((call, keys, args)) = begin(shared, asked, cost, now) else { return Ok(()) };
        let sent = shared.now(now);
        let answer = link.call(script, &keys, &args).await;
        match finish(shared, asked, &call, answer, sent, now) {
            Ok(()) => return Ok(()),
            Err(Unfinished::Foreign(at)) => convert(shared, &mut link, asked, at).await?,
            Err(Unfinished::Unknown) => return Err(Fault::Refused("no such script".to_owned())),
            Err(Unfinished::Failed(fault)) => return Err(fault),
        }
    }
    Err(Fault::Record("converted over and over".to_owned()))
}

/// A request waits for an answer about its client until this is dropped.
struct Waits<'a> {
    table: &'a Table,
    asked: &'a AskedCharge,
    cost: Cost,
}

impl<'a> Waits<'a> {
    fn new(table: &'a Table, asked: &'a AskedCharge, cost: Cost) -> Self {
        let limit = asked.rule.rule.limit();
        table.with(&asked.client, |client| client.awaits(limit, cost, true));
        Self { table, asked, cost }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let (limit, cost) = (self.asked.rule.rule.limit(), self.cost);
        self.table.with(&self.asked.client, |client| client.awaits(limit, cost, false));
    }
}

type Begun = (Call, [Vec<u8>; 2], Vec<Vec<u8>>);

/// A call about a client, its keys and arguments.
fn begin(shared: &Shared, asked: &AskedCharge, cost: Cost, now: Option<Nanos>) -> Option<Begun> {
    let limit = asked.rule.rule.limit();
    let (call, present) = shared.with_near(asked, now, |client, time| {
        (client.call(limit, cost, time, || shared.near.number()), time.redis())
    })?;
    let counted = call.counted.as_ref();
    let counted = counted.and_then(|counted| Some((counted.state.as_ref()?, counted.sum)));
    let all = counted.map_or_else(Vec::new, |(state, sum)| adjustments(asked, state, sum, present));
    let judged = if cost.is_zero() { Cost::ONE } else { cost };
    let claim = Some((&call, judged));
    let (keys, args) = arguments(shared, asked, claim, call.number, &all, now);
    Some((call, keys, args))
}

/// The keys and arguments of near.lua: what is asked for, or nothing; and what was counted, with its number.
fn arguments(
    shared: &Shared,
    asked: &AskedCharge,
    claim: Option<(&Call, Cost)>,
    number: u64,
    counted: &[Adjustment],
    now: Option<Nanos>,
) -> ([Vec<u8>; 2], Vec<Vec<u8>>) {
    let (options, near) = (&shared.options, &shared.near);
    let claims = claim.map(|(call, _)| {
        let least = algorithm::of(asked.rule.rule.limit()).takes(Cost::ONE);
        let lease = lease(options.sync).as_micros() as f64;
        (near.node, [call.need, call.take, call.like, least, f64::from(near.nodes()), lease])
    });
    let (node, claims) = claims.unwrap_or((near.ledger(), [0.0, 0.0, 0.0, f64::MAX, 1.0, 0.0]));
    let mut head = Packed(node.to_vec());
    head.numbers(&[number as f64]);
    head.numbers(&claims);
    head.numbers(&[now.map_or(-1.0, micros)]);
    let cost = claim.map_or(Cost::ONE, |(_, cost)| cost);
    head.0.extend(AskedCharge { cost, ..asked.clone() }.parameters(options.linger, 1.0));
    let counted = counted.iter().map(|adjustment| shared.adjustment(asked, adjustment, now));
    let args = std::iter::once(head.0).chain(counted).collect();
    ([asked.key.clone(), shared.keys.claims(&asked.key)], args)
}

/// Adds what was counted alone under a number, once, however often it is sent; claims nothing.
pub(crate) async fn add(
    shared: &Shared,
    mut link: Link,
    asked: &AskedCharge,
    number: u64,
    state: &State,
    sum: Cost,
) -> Result<(), Fault> {
    let script = shared.scripts.near(asked.rule.kind);
    for _ in 0..CONVERSIONS {
        let (local, offset) = (shared.clock.now(), shared.near.offsets[asked.group].get());
        let now = offset::later(local, offset);
        let state = algorithm::of(asked.rule.rule.limit()).moved(state.clone(), local, now);
        let all = adjustments(asked, &state, sum, now);
        let (keys, args) = arguments(shared, asked, None, number, &all, None);
        match link.call(script, &keys, &args).await? {
            Value::BulkString(verdict) if verdict.first() == Some(&b'3') => {
                convert(shared, &mut link, asked, now).await?;
            }
            _ => return Ok(()),
        }
    }
    Err(Fault::Record("converted over and over".to_owned()))
}

/// What was counted until now, by Redis's clock.
fn adjustments(asked: &AskedCharge, state: &State, sum: Cost, now: Nanos) -> Vec<Adjustment> {
    let now = Nanos::new(now.get() / 1000 * 1000);
    let all = algorithm::of(asked.rule.rule.limit()).adjustments(state, sum, now);
    let mut all: Vec<_> = all.into_iter().filter(|one| !one.cost.is_zero()).collect();
    for adjustment in &mut all {
        if adjustment.when < 0.0 {
            adjustment.when = micros(now);
        }
    }
    let together = all.len().div_ceil(ADJUSTMENTS).max(1);
    let merge = |some: &[Adjustment]| {
        let (last, before) = some.split_last()?;
        let cost = before.iter().fold(last.cost, |sum, one| sum + one.cost);
        Some(Adjustment { cost, ..*last })
    };
    all.chunks(together).filter_map(merge).collect()
}

/// Why an exchange is not done.
enum Unfinished {
    /// The record is of other parameters.
    Foreign(Nanos),
    /// Redis does not have the script.
    Unknown,
    Failed(Fault),
}

/// Takes an answer over.
fn finish(
    shared: &Shared,
    asked: &AskedCharge,
    call: &Call,
    answer: RedisResult<Value>,
    sent: Nanos,
    now: Option<Nanos>,
) -> Result<(), Unfinished> {
    let nonsense =
        || Unfinished::Failed(Fault::Record("the script's answer makes no sense".to_owned()));
    let received = shared.now(now);
    let bytes = match answer {
        Ok(Value::BulkString(bytes)) => bytes,
        Ok(_) => return Err(nonsense()),
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            return Err(Unfinished::Unknown);
        }
        Err(error) => return Err(Unfinished::Failed(error.into())),
    };
    let (time, seen) = match reply::single(&bytes).ok_or_else(nonsense)? {
        Reply::Decided { time, seen } => (time, seen),
        Reply::Foreign { time, .. } => {
            return Err(Unfinished::Foreign(now.or(time).ok_or_else(nonsense)?));
        }
    };
    let answer = seen.first().map(|seen| &seen.state[..]);
    let (share, rest) = answer.and_then(<[u8]>::split_first_chunk).ok_or_else(nonsense)?;
    let (others, rest) = rest.split_first_chunk().ok_or_else(nonsense)?;
    let (lacks, record) = rest.split_first_chunk().ok_or_else(nonsense)?;
    let at = now.or(time).ok_or_else(nonsense)?;
    if now.is_none() {
        shared.near.offsets[asked.group].learn(at, sent, received);
    }
    let limit = asked.rule.rule.limit();
    let state = match algorithm::of(limit).answers() {
        Answers::After => algorithm::decode_summary(limit, record),
        Answers::Before => algorithm::decode(limit, record, at),
    };
    let share = f64::from_le_bytes(*share);
    let until = offset::later(sent, lease(shared.options.sync).as_nanos() as i64);
    let share = if share.is_finite() { share } else { 0.0 };
    let (others, lacks) = (f64::from_le_bytes(*others) as u32, f64::from_le_bytes(*lacks));
    let told = Told { state, share, until, others, lacks };
    let crossed =
        shared.with_near(asked, now, |client, time| client.adopt(limit, call, told, time));
    if crossed == Some(true) {
        count(&shared.counters.crossings);
    }
    Ok(())
}
