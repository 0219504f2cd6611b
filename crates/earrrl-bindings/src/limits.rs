//! The rules of a service, and the treatment of its requests: asked by every middleware of the packages.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use earrrl::{Charge, Cost, Decision, Engine as _, ManualClock, Rule, RuleId};
use earrrl_tower::key::{RequestTarget, Route, TargetBelow};
use earrrl_tower::{
    AddressSource, ClientAddress, Judged, Passed, PeerAddress, Prefixes, RateLimitLayer,
    RequestAttribute, Settlement, Verdict, bounded_key,
};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use ipnet::IpNet;

use crate::answers::{AllAnswers, Answers, CostsAfter, Limits};
use crate::error::Error;
use crate::key::{attributes, headers};
use crate::request_rule::RequestRule;
use crate::settings;

/// The settings of [`RateLimits`].
pub struct LimitsOptions {
    /// The directory of the files of the rules, which processes share.
    pub path: Option<PathBuf>,
    /// The greatest number of clients of each rule.
    pub capacity: usize,
    /// The networks of proxies that are believed.
    pub trusted_proxies: Vec<String>,
    /// The number of proxies, where their addresses are not known.
    pub hops: usize,
    /// The header in which proxies report clients.
    pub source: String,
    /// The bits of an IPv4 address that are one client.
    pub ipv4_prefix: u32,
    /// The bits of an IPv6 address that are one client.
    pub ipv6_prefix: u32,
    /// The status of denials.
    pub status: u16,
    /// True if allowed responses have headers.
    pub headers_on_allowed: bool,
    /// True if responses have the older headers too.
    pub x_rate_limit: bool,
    /// True if every handler gets a decision.
    pub always_verdict: bool,
    /// The clock of a test, in place of the system's.
    pub clock: Option<Arc<ManualClock>>,
}

impl Default for LimitsOptions {
    fn default() -> Self {
        Self {
            path: None,
            capacity: 100_000,
            trusted_proxies: Vec::new(),
            hops: 0,
            source: "x-forwarded-for".to_owned(),
            ipv4_prefix: 32,
            ipv6_prefix: 64,
            status: StatusCode::TOO_MANY_REQUESTS.as_u16(),
            headers_on_allowed: true,
            x_rate_limit: false,
            always_verdict: false,
            clock: None,
        }
    }
}

/// The rules of a service, over one engine in memory or in files.
pub struct RateLimits {
    layer: RateLimitLayer<settings::Engine>,
    /// The names of the rules and plans.
    names: Vec<String>,
    /// The limits of the rules, in their order, before a change.
    rules: Vec<Rule>,
    /// The attributes that the rules read.
    read: Vec<RequestAttribute>,
    /// The headers that the rules read.
    headers: Vec<HeaderName>,
}

/// The parts of a request that a middleware passes on.
#[derive(Default)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a str,
    /// The target as the client has sent it, or the path that was decoded from it.
    pub target: Target<'a>,
    /// The target without the prefix at which a proxy or another application serves this one; `None` without a prefix.
    pub below: Option<Target<'a>>,
    /// The address of the connection, as a text.
    pub peer: Option<&'a str>,
    /// The route that the framework has found.
    pub route: Option<String>,
    /// The headers that the rules read; others are not needed.
    pub headers: HeaderMap,
    /// The answers of the functions of each rule; none if no rule has a function.
    pub answers: Vec<Answers>,
}

/// The target of a request.
pub enum Target<'a> {
    /// A target as a client has sent it: a path with percent-encoded characters, or a URL.
    Sent(&'a [u8]),
    /// A path whose characters are decoded already.
    Decoded(&'a [u8]),
}

impl Default for Target<'_> {
    fn default() -> Self {
        Self::Sent(b"/")
    }
}

impl Target<'_> {
    /// Returns the target as a client may have sent it. In a decoded path, `%`, `?` and `#` are themselves and begin no
    /// escape, query or fragment, and no host follows several slashes at its start.
    fn sent(self) -> Vec<u8> {
        let path = match self {
            Self::Sent(target) => return target.to_vec(),
            Self::Decoded(path) => path,
        };
        let slashes = path.iter().take_while(|byte| **byte == b'/').count();
        let path = &path[slashes.saturating_sub(1)..];
        let mut target = Vec::with_capacity(path.len() + 8);
        for byte in path {
            match byte {
                b'%' => target.extend(b"%25"),
                b'?' => target.extend(b"%3F"),
                b'#' => target.extend(b"%23"),
                byte => target.push(*byte),
            }
        }
        target
    }
}

/// A decision for the handler of its request.
pub struct Visit {
    /// The name of the rule that determined the figures.
    pub name: String,
    /// The rule.
    pub rule: Rule,
    /// The decision.
    pub decision: Decision,
}

impl RateLimits {
    /// Builds the rules.
    ///
    /// # Errors
    /// Returns an error for wrong settings, and if the engine cannot be built or refuses a rule.
    pub fn new<'r>(
        rules: impl IntoIterator<Item = &'r RequestRule>,
        options: LimitsOptions,
    ) -> Result<Self, Error> {
        let address = client_address(&options)?;
        let status = settings::status("status", options.status)?;
        let engine = settings::engine(options.path, options.capacity, options.clock)?;
        let mut builder = RateLimitLayer::builder(engine)
            .status(status)
            .headers_on_allowed(options.headers_on_allowed)
            .x_rate_limit(options.x_rate_limit)
            .always_verdict(options.always_verdict);
        let mut read = Vec::new();
        let mut own = Vec::new();
        for (place, rule) in rules.into_iter().enumerate() {
            builder = builder.rule(rule.for_layer(place, &address));
            own.push(rule.limit().clone());
            read.extend(attributes(&rule.key));
            if !rule.paths.is_empty() {
                read.push(RequestAttribute::Path);
            }
        }
        let layer = builder.build()?;
        let prepared = layer.engine().rules().into_iter();
        Ok(Self {
            names: prepared.map(|(name, _)| name).collect(),
            rules: own,
            layer,
            headers: headers(&read, &address),
            read,
        })
    }

    /// Judges a request.
    ///
    /// # Errors
    /// Returns an error if a rule reads the route and the request has none, and for a limit of a function that is none.
    pub fn judge(&self, head: RequestHead<'_>) -> Result<Judged, Error> {
        let mut parts = Request::new(()).into_parts().0;
        parts.method = head.method.parse().unwrap_or_default();
        parts.headers = head.headers;
        let extensions = &mut parts.extensions;
        if self.reads(&RequestAttribute::Path) {
            extensions.insert(RequestTarget(head.target.sent().into()));
            if let Some(below) = head.below {
                extensions.insert(TargetBelow(below.sent().into()));
            }
        }
        if let Some(Ok(address)) = head.peer.map(str::parse::<IpAddr>) {
            extensions.insert(PeerAddress(address));
        }
        if let Some(route) = head.route {
            extensions.insert(Route(route));
        } else if self.reads(&RequestAttribute::Route) {
            let place = "apply the middleware where the framework has found the route";
            return Err(format!("key: the route is not known; {place}, or use path").into());
        }
        if head.answers.iter().any(|own| own.limit.is_some()) {
            extensions.insert(self.limits(&head.answers)?);
        }
        if !head.answers.is_empty() {
            extensions.insert(AllAnswers(head.answers));
        }
        Ok(self.layer.judge(&parts))
    }

    /// Returns the limits that functions have returned for a request. They have the action and the greatest cost of
    /// their rules.
    fn limits(&self, answers: &[Answers]) -> Result<Limits, Error> {
        let limit = |(own, rule): (&Answers, &Rule)| {
            let limit = own
                .limit
                .as_deref()
                .map(|text| settings::limit_like(rule, text));
            limit
                .transpose()
                .map_err(|why| Error::Invalid(format!("the limit of a request: {why}")))
        };
        let limits = answers.iter().zip(&self.rules).map(limit);
        Ok(Limits(limits.collect::<Result<_, _>>()?))
    }

    /// Returns the names of the headers that the rules read.
    pub fn headers(&self) -> &[HeaderName] {
        &self.headers
    }

    /// Adds a header of a request to `headers` if the rules read it.
    pub fn add_header(&self, headers: &mut HeaderMap, name: &[u8], value: &[u8]) {
        let is_it = |known: &&HeaderName| known.as_str().as_bytes().eq_ignore_ascii_case(name);
        let known = self.headers.iter().find(is_it);
        if let Some((name, value)) = known.zip(HeaderValue::from_bytes(value).ok()) {
            // More headers than the map takes are of no use to a rule.
            let _ = headers.try_append(name.clone(), value);
        }
    }

    /// Returns true if a rule reads this attribute; others need not be given.
    pub fn reads(&self, attribute: &RequestAttribute) -> bool {
        self.read.contains(attribute)
    }

    /// Returns the names of the rules and plans, each of which has a table of clients.
    pub fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Returns a warning for each rule that begins afresh, or keeps another capacity than it is given.
    pub fn warnings(&self) -> Vec<String> {
        let notices = self.layer.engine().notices().into_iter();
        notices.map(|notice| format!("rule {notice}")).collect()
    }

    /// Returns the rule or plan of this name as it is at present.
    pub fn rule(&self, name: &str) -> Option<Rule> {
        self.layer.engine().prepared(name)
    }

    /// Changes the limit of a rule or plan while requests go on. Its action and greatest cost stay.
    ///
    /// # Errors
    /// Returns an error for an unknown name, and for a limit that is none.
    pub fn change(&self, name: &str, limit: &str) -> Result<(), Error> {
        let known = self.rule(name);
        let known = known.ok_or_else(|| Error::UnknownName(name.to_owned()))?;
        Ok(self
            .layer
            .change(name, &settings::limit_like(&known, limit)?)?)
    }

    /// Forgets a client of a rule or plan.
    ///
    /// # Errors
    /// Returns an error for an unknown name.
    pub fn reset(&self, name: &str, key: &[u8]) -> Result<(), Error> {
        let reset = self.layer.engine().reset(self.id(name)?, &bounded_key(key));
        Ok(reset.into_inner()?)
    }

    /// Takes back one request of a client under a rule or plan.
    ///
    /// # Errors
    /// Returns an error for an unknown name.
    pub fn refund(&self, name: &str, key: &[u8], cost: Cost) -> Result<(), Error> {
        let charge = Charge {
            rule: self.id(name)?,
            key: &bounded_key(key),
            cost,
        };
        let refund = self.layer.engine().refund(&charge, None, None);
        Ok(refund.into_inner()?)
    }

    /// Returns the decision on a request that is passed on, if its handler gets one.
    pub fn visit(&self, verdict: Verdict) -> Option<Visit> {
        let (name, decision) = verdict.rule.zip(verdict.decision)?;
        let limit = verdict.limit.map(Arc::unwrap_or_clone);
        Some(Visit {
            rule: limit.or_else(|| self.rule(&name))?,
            name: name.to_string(),
            decision,
        })
    }

    fn id(&self, name: &str) -> Result<RuleId, Error> {
        let place = self.names.iter().position(|known| known == name);
        place
            .map(|place| RuleId(place as u32))
            .ok_or_else(|| Error::UnknownName(name.to_owned()))
    }
}

/// Prepares a request to be passed on, just before it is. Returns what its handler gets.
pub fn enter(passed: &mut Passed) -> (Option<Verdict>, Option<Settlement>) {
    let mut extensions = Extensions::new();
    passed.enter(&mut extensions);
    (extensions.remove(), extensions.remove())
}

/// Charges the costs that depend on the response, one for each rule, and returns the headers to add to it.
pub fn leave(passed: Passed, costs: Vec<Cost>) -> HeaderMap {
    let mut parts = Response::new(()).into_parts().0;
    if !costs.is_empty() {
        parts.extensions.insert(CostsAfter(costs));
    }
    passed.leave(&mut parts);
    parts.headers
}

fn client_address(options: &LimitsOptions) -> Result<ClientAddress, Error> {
    let prefixes = Prefixes::new(
        prefix("ipv4_prefix", options.ipv4_prefix, 32)?,
        prefix("ipv6_prefix", options.ipv6_prefix, 128)?,
    );
    let mut address = ClientAddress::default()
        .hops(options.hops)
        .source(source(&options.source)?)
        .prefixes(prefixes);
    for text in &options.trusted_proxies {
        address = address.trust(network(text)?);
    }
    address.validate()?;
    Ok(address)
}

fn prefix(name: &str, bits: u32, most: u8) -> Result<u8, Error> {
    let bits = u8::try_from(bits).ok().filter(|bits| *bits <= most);
    bits.ok_or_else(|| format!("{name}: expected a whole number from 0 to {most}").into())
}

fn source(text: &str) -> Result<AddressSource, Error> {
    match text.to_ascii_lowercase().as_str() {
        "x-forwarded-for" => Ok(AddressSource::XForwardedFor),
        "forwarded" => Ok(AddressSource::Forwarded),
        name => match name.parse() {
            Ok(name) => Ok(AddressSource::Header(name)),
            Err(_) => Err(format!("source: {text:?} is not the name of a header").into()),
        },
    }
}

fn network(text: &str) -> Result<IpNet, Error> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address).ok_or_else(|| {
        format!("trusted_proxies: {text:?} is not a network such as 10.0.0.0/8").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoded_path_is_a_target_again() {
        for (path, target) in [
            ("/login", "/login"),
            ("//login", "/login"),
            ("///v1//login", "/v1//login"),
            ("/100%?#", "/100%25%3F%23"),
            ("", ""),
        ] {
            let sent = Target::Decoded(path.as_bytes()).sent();
            assert_eq!(*sent, *target.as_bytes());
        }
        assert_eq!(*Target::Sent(b"//login?a").sent(), *b"//login?a");
    }
}
