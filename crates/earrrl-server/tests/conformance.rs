//! Runs the conformance suite over both protocols: every field of an answer must equal that of an
//! engine in the same process.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support;
use crate::support::TestServer;
use crate::support::resp::Reply;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earrrl::internal::{Brief, Places, check_name};
use earrrl::{
    Charge, Cost, Decision, Engine, EngineError, ManualClock, Mode, Nanos, Outcome, Rule, RuleId,
    Wait,
};
use earrrl_server::config::{Config, RuleConfig};
use earrrl_testing::{Profile, Random, ReferenceEngine, block_on, conformance};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A way to send an engine's questions to a server.
trait Wire: Send {
    fn ask(&mut self, charges: &[Named<'_>], peek: bool) -> Result<Decision, String>;
    fn refund(&mut self, charge: &Named<'_>, at: Option<Nanos>) -> Result<(), String>;
    fn reset(&mut self, charge: &Named<'_>) -> Result<(), String>;
}

/// A charge that names its rule.
struct Named<'a> {
    rule: String,
    key: &'a [u8],
    cost: Cost,
}

/// An engine in the server on the other side of a socket. The test sets its clock.
struct Remote {
    wire: Mutex<Box<dyn Wire>>,
    server: TestServer,
    config: Config,
    clock: Arc<ManualClock>,
    rules: Mutex<Vec<RuleConfig>>,
}

impl Remote {
    fn new(config: Config, wire: impl Fn(&TestServer) -> Box<dyn Wire>) -> Self {
        let clock = Arc::new(ManualClock::new(Nanos::ZERO));
        let server = TestServer::with_clock(config.clone(), clock.clone());
        let wire = Mutex::new(wire(&server));
        let rules = Mutex::default();
        Self {
            wire,
            server,
            config,
            clock,
            rules,
        }
    }

    fn named<'a>(&self, charge: &Charge<'a>) -> Named<'a> {
        let rules = self.rules.lock().unwrap();
        let rule = rules
            .get(charge.rule.0 as usize)
            .map(|rule| rule.name.clone());
        Named {
            rule: rule.unwrap_or("unknown".into()),
            key: charge.key,
            cost: charge.cost,
        }
    }

    fn ask(
        &self,
        charges: &[Charge<'_>],
        now: Option<Nanos>,
        peek: bool,
    ) -> Ready<Result<Decision, EngineError>> {
        self.clock.set(now.unwrap_or_default());
        let named: Vec<_> = charges.iter().map(|charge| self.named(charge)).collect();
        ready(
            self.wire
                .lock()
                .unwrap()
                .ask(&named, peek)
                .map_err(EngineError::Unavailable),
        )
    }
}

impl Engine for Remote {
    type Decide = Ready<Result<Decision, EngineError>>;
    type Done = Ready<Result<(), EngineError>>;

    fn prepare(&self, name: &str, rule: &Rule) -> Result<RuleId, EngineError> {
        check_name(name)?;
        let mut rules = self.rules.lock().unwrap();
        let place = rules
            .iter()
            .position(|known| known.name == name)
            .unwrap_or(rules.len());
        rules.truncate(place);
        let text = format!("[[rule]]\nname = \"{name}\"\nlimit = \"gcra 1/s burst=1\"");
        let mut usual = Config::parse(&text, "usual").unwrap().rules.remove(0);
        usual.rule = rule.clone();
        rules.push(usual);
        let config = Config {
            rules: rules.clone(),
            capacity: 1000,
            ..self.config.clone()
        };
        self.server
            .server
            .reload(Ok(config))
            .map_err(EngineError::Unavailable)?;
        Ok(RuleId(place as u32))
    }

    fn prepared(&self, name: &str) -> Option<Rule> {
        let rules = self.rules.lock().unwrap();
        rules
            .iter()
            .find(|known| known.name == name)
            .map(|known| known.rule.clone())
    }

    fn decide(&self, charges: &[Charge<'_>], mode: Mode, now: Option<Nanos>) -> Self::Decide {
        match mode {
            Mode::Check => self.ask(charges, now, false),
            Mode::Peek => self.ask(charges, now, true),
            Mode::Charge => ready(Err(EngineError::Unavailable(
                "no protocol can charge yet".into(),
            ))),
        }
    }

    fn refund(&self, charge: &Charge<'_>, at: Option<Nanos>, now: Option<Nanos>) -> Self::Done {
        self.clock.set(now.unwrap_or_default());
        let named = self.named(charge);
        ready(
            self.wire
                .lock()
                .unwrap()
                .refund(&named, at)
                .map_err(EngineError::Unavailable),
        )
    }

    fn reset(&self, rule: RuleId, key: &[u8]) -> Self::Done {
        let named = self.named(&Charge {
            rule,
            key,
            cost: Cost::ONE,
        });
        ready(
            self.wire
                .lock()
                .unwrap()
                .reset(&named)
                .map_err(EngineError::Unavailable),
        )
    }
}

/// Returns a decision whose fields are to be overwritten, since other crates cannot construct one.
fn blank() -> Decision {
    let engine = ReferenceEngine::new(Arc::new(ManualClock::new(Nanos::ZERO)));
    let rule = engine
        .prepare("blank", &"gcra 1/s burst=1".parse().unwrap())
        .unwrap();
    let charge = Charge {
        rule,
        key: b"",
        cost: Cost::ONE,
    };
    block_on(engine.decide(&[charge], Mode::Check, Some(Nanos::ZERO))).unwrap()
}

fn outcome(name: &str) -> Outcome {
    use Outcome::{Allow, Delay, Deny, Observe, Quarantine, ShadowBan};
    let all = [Allow, Observe, Quarantine, Delay, ShadowBan, Deny];
    all.into_iter()
        .find(|outcome| outcome.name() == name)
        .unwrap()
}

/// Parses seconds exactly, without going through a floating point number.
fn duration(text: &str) -> Duration {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    Duration::new(
        whole.parse().unwrap(),
        format!("{fraction:0<9}").parse().unwrap(),
    )
}

fn seconds(at: Nanos) -> String {
    format!(
        "{}.{:09}",
        at.get() / 1_000_000_000,
        at.get() % 1_000_000_000
    )
}

struct Http(support::http::Client);

#[derive(Deserialize)]
struct Json<'a> {
    allowed: bool,
    action: &'a str,
    rule: &'a str,
    #[serde(borrow)]
    rate: Option<&'a RawValue>,
    #[serde(borrow)]
    limit: &'a RawValue,
    remaining: u64,
    #[serde(borrow)]
    retry_after: Option<&'a RawValue>,
    #[serde(borrow)]
    reset_after: &'a RawValue,
    #[serde(borrow)]
    delay: &'a RawValue,
    #[serde(borrow)]
    t0: &'a RawValue,
    charge: Option<usize>,
    over_charges: Option<Vec<usize>>,
}

impl Json<'_> {
    fn decision(&self, charges: &[Named<'_>]) -> Decision {
        let mut decision = blank();
        decision.allowed = self.allowed;
        decision.outcome = outcome(self.action);
        decision.rule = self.charge.unwrap_or(0);
        assert_eq!(self.rule, charges[decision.rule].rule);
        // The floating point numbers that serde_json parses can differ in the last bit.
        let double = |raw: &RawValue| raw.get().parse().unwrap();
        (decision.rate, decision.limit) = (self.rate.map(double), double(self.limit));
        decision.remaining = self.remaining;
        let wait = |raw: &RawValue| duration(raw.get());
        decision.retry_after = self
            .retry_after
            .map_or(Wait::Never, |raw| Wait::For(wait(raw)));
        decision.reset_after = wait(self.reset_after);
        decision.delay = wait(self.delay);
        decision.at = Nanos::new(wait(self.t0).as_nanos() as u64);
        let places = self.over_charges.as_ref();
        let over = places.map(|places| places.iter().copied().collect());
        decision.over = over.unwrap_or_else(|| only(decision.outcome != Outcome::Allow));
        decision
    }
}

/// Returns the places over the limit for a single charge.
fn only(over: bool) -> Places {
    over.then_some(0).into_iter().collect()
}

fn charge_json(charge: &Named<'_>) -> String {
    let Named { rule, key, cost } = charge;
    match std::str::from_utf8(key) {
        Ok(text) => {
            let key = serde_json::to_string(text).unwrap();
            format!("{{\"rule\":\"{rule}\",\"key\":{key},\"cost\":{cost}}}")
        }
        Err(_) => {
            let key = STANDARD.encode(key);
            format!("{{\"rule\":\"{rule}\",\"key_b64\":\"{key}\",\"cost\":{cost}}}")
        }
    }
}

fn check_json(charges: &[Named<'_>]) -> String {
    let list: Vec<_> = charges.iter().map(charge_json).collect();
    match &list[..] {
        [one] => one.clone(),
        several => format!("{{\"rules\":[{}]}}", several.join(",")),
    }
}

impl Wire for Http {
    fn ask(&mut self, charges: &[Named<'_>], peek: bool) -> Result<Decision, String> {
        let path = if peek { "/v1/peek" } else { "/v1/check" };
        let response = self.0.post(path, &check_json(charges));
        match response.status {
            200 | 429 => {
                let json: Json<'_> = serde_json::from_str(&response.body).unwrap();
                assert_eq!(response.status == 200, peek || json.allowed);
                Ok(json.decision(charges))
            }
            _ => Err(response.body),
        }
    }

    fn refund(&mut self, charge: &Named<'_>, at: Option<Nanos>) -> Result<(), String> {
        let mut json = charge_json(charge);
        if let Some(at) = at {
            json.truncate(json.len() - 1);
            json += &format!(",\"t0\":{}}}", seconds(at));
        }
        let response = self.0.post("/v1/refund", &json);
        if response.status == 204 {
            Ok(())
        } else {
            Err(response.body)
        }
    }

    fn reset(&mut self, charge: &Named<'_>) -> Result<(), String> {
        let key: String = charge
            .key
            .iter()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let path = format!("/v1/clients/{}/{key}", charge.rule);
        let response = self.0.request("DELETE", &path, "", b"");
        if response.status == 204 {
            Ok(())
        } else {
            Err(response.body)
        }
    }
}

struct Resp(support::resp::Client);

impl Resp {
    fn new(server: &TestServer, version: &str) -> Self {
        let mut client = server.resp();
        client.line(&format!("HELLO {version}"));
        Self(client)
    }

    fn done(&mut self, words: &[&[u8]]) -> Result<(), String> {
        match self.0.call(words) {
            Reply::Simple(ok) if ok == "OK" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }
}

fn resp_words(charges: &[Named<'_>], peek: bool) -> Vec<Vec<u8>> {
    let mut words = vec![if peek {
        b"EARRRL.PEEK".to_vec()
    } else {
        b"earrrl.check".to_vec()
    }];
    for (place, charge) in charges.iter().enumerate() {
        if place > 0 {
            words.push(b"AND".to_vec());
        }
        let cost = charge.cost.to_string().into_bytes();
        words.extend([
            charge.rule.as_bytes().to_vec(),
            charge.key.to_vec(),
            b"COST".to_vec(),
            cost,
        ]);
    }
    words
}

fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Nil => None,
        Reply::Bulk(bytes) => Some(String::from_utf8(bytes.clone()).unwrap()),
        Reply::Double(text) => Some(text.clone()),
        Reply::Integer(value) => Some(value.to_string()),
        Reply::Boolean(value) => Some(i64::from(*value).to_string()),
        other => panic!("{other:?}"),
    }
}

fn resp_decision(reply: Reply) -> Result<Decision, String> {
    if let Reply::Error(error) = reply {
        return Err(error);
    }
    let pairs = reply.pairs();
    let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "allowed",
        "action",
        "rate",
        "limit",
        "remaining",
        "retry_after",
        "reset_after",
    ];
    assert_eq!(names[..7], expected);
    let value = |place: usize| text(&pairs[place].1);
    let mut decision = blank();
    decision.allowed = value(0).unwrap() == "1";
    decision.outcome = outcome(&value(1).unwrap());
    decision.rate = value(2).map(|rate| rate.parse().unwrap());
    decision.limit = value(3).unwrap().parse().unwrap();
    decision.remaining = value(4).unwrap().parse().unwrap();
    decision.retry_after = value(5).map_or(Wait::Never, |wait| Wait::For(duration(&wait)));
    decision.reset_after = duration(&value(6).unwrap());
    decision.delay = duration(&value(7).unwrap());
    decision.rule = 0;
    decision.over = only(decision.outcome != Outcome::Allow);
    let ((last, t0), rest) = pairs[8..].split_last().unwrap();
    assert_eq!(last, "t0");
    decision.at = Nanos::new(duration(&text(t0).unwrap()).as_nanos() as u64);
    if let [(charge, Reply::Integer(rule)), (over, Reply::Array(places))] = rest {
        assert_eq!((charge.as_str(), over.as_str()), ("charge", "over"));
        decision.rule = *rule as usize;
        let place = |reply: &Reply| text(reply).unwrap().parse::<usize>().unwrap();
        decision.over = places.iter().map(place).collect();
    }
    Ok(decision)
}

impl Wire for Resp {
    fn ask(&mut self, charges: &[Named<'_>], peek: bool) -> Result<Decision, String> {
        let words = resp_words(charges, peek);
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        resp_decision(self.0.call(&words))
    }

    fn refund(&mut self, charge: &Named<'_>, at: Option<Nanos>) -> Result<(), String> {
        let cost = charge.cost.to_string();
        let at = at.map(seconds);
        let mut words = vec![
            b"EARRRL.REFUND",
            charge.rule.as_bytes(),
            charge.key,
            cost.as_bytes(),
        ];
        if let Some(at) = &at {
            words.extend([b"T0".as_slice(), at.as_bytes()]);
        }
        self.done(&words)
    }

    fn reset(&mut self, charge: &Named<'_>) -> Result<(), String> {
        self.done(&[b"EARRRL.RESET", charge.rule.as_bytes(), charge.key])
    }
}

fn http(server: &TestServer) -> Box<dyn Wire> {
    Box::new(Http(server.http()))
}

fn resp2(server: &TestServer) -> Box<dyn Wire> {
    Box::new(Resp::new(server, "2"))
}

fn resp3(server: &TestServer) -> Box<dyn Wire> {
    Box::new(Resp::new(server, "3"))
}

fn conforms(
    profile: &Profile,
    config: impl Fn() -> Config,
    wire: impl Fn(&TestServer) -> Box<dyn Wire>,
) {
    let compared = block_on(conformance(async || Remote::new(config(), &wire), profile)).unwrap();
    assert!(compared > 10_000);
}

#[test]
fn http_conforms() {
    conforms(
        &Profile {
            charges: false,
            ..Profile::EXACT
        },
        || support::parse(""),
        http,
    );
}

#[test]
fn resp2_conforms() {
    conforms(
        &Profile {
            charges: false,
            ..Profile::EXACT
        },
        || support::parse(""),
        resp2,
    );
}

#[test]
fn resp3_conforms() {
    conforms(
        &Profile {
            charges: false,
            ..Profile::EXACT
        },
        || support::parse(""),
        resp3,
    );
}

mod over_redis {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use crate::support::PATIENCE;
    use crate::support::redis::Redis;
    use earrrl_redis::WhenGone;
    use earrrl_server::config::EngineConfig;

    use super::*;

    /// Returns a configuration with records of its own. Times are virtual, so records must not
    /// expire during the test, and a slow machine must not count as an outage.
    fn apart(redis: &Redis) -> Config {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let engine = format!("[engine]\nredis = \"{}\"\ncapacity = 1000\n", redis.url());
        let mut config = support::parse(&engine);
        let EngineConfig::Redis(redis) = &mut config.engine else {
            panic!("another engine")
        };
        redis.own_clock = true;
        redis.options.prefix = format!("scene{}-", COUNT.fetch_add(1, Relaxed));
        redis.options.linger = Duration::from_secs(3600);
        redis.options.deadline = PATIENCE;
        redis.options.when_gone = WhenGone::Deny;
        config
    }

    #[test]
    fn http_conforms() {
        let redis = Redis::start();
        conforms(
            &Profile {
                charges: false,
                ..Profile::REDIS
            },
            || apart(&redis),
            http,
        );
    }

    #[test]
    fn resp2_conforms() {
        let redis = Redis::start();
        conforms(
            &Profile {
                charges: false,
                ..Profile::REDIS
            },
            || apart(&redis),
            resp2,
        );
    }

    #[test]
    fn resp3_conforms() {
        let redis = Redis::start();
        conforms(
            &Profile {
                charges: false,
                ..Profile::REDIS
            },
            || apart(&redis),
            resp3,
        );
    }

    #[test]
    fn allow_tells_in_brief_what_a_check_tells() {
        let redis = Redis::start();
        super::allow_tells_what_a_check_tells(|| apart(&redis));
    }
}

#[test]
fn allow_tells_in_brief_what_a_check_tells() {
    allow_tells_what_a_check_tells(|| support::parse(""));
}

/// Asks two servers the same questions, one by `EARRRL.CHECK` and the other by `EARRRL.ALLOW`.
fn allow_tells_what_a_check_tells(config: impl Fn() -> Config) {
    const ACTIONS: [&str; 5] = [
        "deny",
        "delay\"\nmax_delay = \"500ms",
        "quarantine",
        "shadow-ban",
        "observe",
    ];
    let rules = STREAM_RULES
        .iter()
        .zip(ACTIONS)
        .enumerate()
        .map(|(place, (text, action))| {
            format!(
                "[[rule]]\nname = \"rule-{place}\"\nlimit = \"{text}\"\naction = \"{action}\"\n"
            )
        });
    let rules = support::parse(&rules.collect::<String>()).rules;
    let servers = ["EARRRL.CHECK", "EARRRL.ALLOW"].map(|command| {
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
        let config = Config {
            rules: rules.clone(),
            ..config()
        };
        let server = TestServer::with_clock(config, clock.clone());
        (command, server.resp(), server, clock)
    });
    let [mut check, mut allow] = servers;
    let mut waits = 0;
    let mut denied = 0;
    for requests in stream().chunks(TOGETHER).take(20) {
        // There are only ten clients, so that many requests are denied.
        let first = |(key, charges): &Streamed| (key[..8].to_owned(), charges[..1].to_vec());
        let requests: Vec<Streamed> = requests.iter().map(first).collect();
        for (command, client, _, clock) in [&mut check, &mut allow] {
            clock.advance(Duration::from_nanos(123_456_789));
            let encode = |request: &Streamed| {
                let mut words = resp_words(&named(request), false);
                words[0] = command.as_bytes().to_vec();
                support::resp::encode(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
            };
            client.send(&requests.iter().flat_map(encode).collect::<Vec<u8>>());
        }
        for request in &requests {
            let decision = resp_decision(check.1.reply()).unwrap();
            let told = brief(&Brief::from(&decision));
            assert_eq!(
                allow.1.reply(),
                Reply::Array(told.map(Reply::Integer).into()),
                "{request:?}"
            );
            denied += i64::from(told[0] == 0);
            waits += i64::from(told[2] > 0);
        }
    }
    assert!(denied > 1000 && waits > denied, "{denied} {waits}");
}

fn brief(brief: &Brief) -> [i64; 3] {
    let millis = |wait: Duration| wait.as_nanos().div_ceil(1_000_000) as i64;
    let wait = brief.wait.duration().map_or(-1, millis);
    [brief.is_allowed().into(), brief.remaining as i64, wait]
}

/// The rules of the long stream. Each request is charged to one to three of them.
const STREAM_RULES: [&str; 4] = [
    "recent-average 5/s half-life=10s strict",
    "gcra 3/s burst=10",
    "sliding-window 20/10s leaky",
    "exponential 30/10s leaky",
];
const STREAM_LEN: usize = 100_000;
/// The number of requests that are sent together, at the same time.
const TOGETHER: usize = 500;

/// A request of the long stream: its key, and its charges as (rule, cost).
type Streamed = (String, Vec<(usize, Cost)>);

fn stream() -> Vec<Streamed> {
    let mut random = Random::new(5);
    let mut request = |_| {
        let key = format!("client-{}", random.below(300));
        let first = random.below(STREAM_RULES.len() as u64) as usize;
        let count = if random.below(4) == 0 { 3 } else { 1 };
        let charge = |nth| {
            (
                (first + nth) % STREAM_RULES.len(),
                Cost::from_units(random.below(3)),
            )
        };
        (key, (0..count).map(charge).collect())
    };
    (0..STREAM_LEN).map(&mut request).collect()
}

fn rule_name(place: usize) -> String {
    format!("rule-{place}")
}

fn stream_server() -> (TestServer, Arc<ManualClock>) {
    let rule = |(place, text)| format!("[[rule]]\nname = \"rule-{place}\"\nlimit = \"{text}\"\n");
    TestServer::manual(
        &STREAM_RULES
            .iter()
            .enumerate()
            .map(rule)
            .collect::<String>(),
    )
}

fn named(request: &Streamed) -> Vec<Named<'_>> {
    let (key, charges) = request;
    let each = charges.iter();
    each.map(|(rule, cost)| Named {
        rule: rule_name(*rule),
        key: key.as_bytes(),
        cost: *cost,
    })
    .collect()
}

/// Sends the requests in groups of 500, and moves the clock forward between groups.
fn in_steps(
    clock: &ManualClock,
    mut answer: impl FnMut(&[Streamed]) -> Vec<Decision>,
) -> Vec<Decision> {
    let steps = stream();
    let steps = steps.chunks(TOGETHER).flat_map(|requests| {
        clock.advance(Duration::from_nanos(123_456_789));
        answer(requests)
    });
    steps.collect()
}

/// Returns the part of a decision that is sent: all of it but the shortest wait of a request with a place in a queue.
fn as_sent(decision: &Decision) -> Decision {
    let mut sent = blank();
    sent.allowed = decision.allowed;
    sent.at = decision.at;
    sent.outcome = decision.outcome;
    sent.rule = decision.rule;
    sent.rate = decision.rate;
    sent.limit = decision.limit;
    sent.remaining = decision.remaining;
    sent.retry_after = decision.retry_after;
    sent.reset_after = decision.reset_after;
    sent.delay = decision.delay;
    sent.over = decision.over;
    sent
}

fn stream_in_process() -> Vec<Decision> {
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let engine = ReferenceEngine::new(clock.clone());
    let prepare = |(place, text): (usize, &&str)| {
        engine
            .prepare(&rule_name(place), &text.parse().unwrap())
            .unwrap()
    };
    let ids: Vec<RuleId> = STREAM_RULES.iter().enumerate().map(prepare).collect();
    let decide = |(key, charges): &Streamed| {
        let charge = |(rule, cost): &(usize, Cost)| Charge {
            rule: ids[*rule],
            key: key.as_bytes(),
            cost: *cost,
        };
        let charges: Vec<_> = charges.iter().map(charge).collect();
        block_on(engine.decide(&charges, Mode::Check, None)).unwrap()
    };
    in_steps(&clock, |requests| {
        requests
            .iter()
            .map(decide)
            .map(|decision| as_sent(&decision))
            .collect()
    })
}

fn stream_over_http() -> Vec<Decision> {
    let (server, clock) = stream_server();
    let mut client = server.http();
    in_steps(&clock, |requests| {
        let named: Vec<_> = requests.iter().map(named).collect();
        let checks: Vec<_> = named.iter().map(|charges| check_json(charges)).collect();
        let body = format!("{{\"checks\":[{}]}}", checks.join(","));
        let response = client.post("/v1/check/batch", &body);
        #[derive(Deserialize)]
        struct Decisions<'a> {
            #[serde(borrow)]
            decisions: Vec<Json<'a>>,
        }
        let answers: Decisions<'_> = serde_json::from_str(&response.body).unwrap();
        answers
            .decisions
            .iter()
            .zip(&named)
            .map(|(json, named)| json.decision(named))
            .collect()
    })
}

fn stream_over_resp(version: &str) -> Vec<Decision> {
    let (server, clock) = stream_server();
    let mut client = server.resp();
    client.line(&format!("HELLO {version}"));
    in_steps(&clock, |requests| {
        let encode = |request: &Streamed| {
            let words = resp_words(&named(request), false);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            support::resp::encode(&words)
        };
        client.send(&requests.iter().flat_map(encode).collect::<Vec<u8>>());
        requests
            .iter()
            .map(|_| resp_decision(client.reply()).unwrap())
            .collect()
    })
}

#[test]
fn a_long_stream_is_answered_alike_everywhere() {
    let expected = stream_in_process();
    assert_eq!(expected.len(), STREAM_LEN);
    assert!(expected.iter().filter(|decision| !decision.allowed).count() > STREAM_LEN / 10);
    for (place, got) in [
        stream_over_http(),
        stream_over_resp("2"),
        stream_over_resp("3"),
    ]
    .iter()
    .enumerate()
    {
        for (nth, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{place}: request {nth}");
        }
    }
}
