//! The server's counters, and their page in the Prometheus text format.

mod counter;
mod family;

pub(crate) use counter::digest;
pub use counter::{Counter, Histogram, Outcomes, RuleOutcomes, SmallCounter};
pub use family::{Family, Labels};

use counter::{CountsByName, OUTCOMES};

/// The HTTP statuses that have counters of their own; all other statuses share one counter.
const STATUSES: [u16; 15] = [
    200, 204, 400, 401, 403, 404, 405, 409, 413, 415, 421, 422, 429, 431, 503,
];
/// The codes of RESP errors that have counters of their own.
const CODES: [&str; 6] = [
    "ERR",
    "EXECABORT",
    "NOAUTH",
    "NOPERM",
    "NOPROTO",
    "WRONGPASS",
];

/// The results of reading the heads of the PROXY protocol.
const PROXY_HEADS: [&str; 6] = ["client", "local", "untrusted", "invalid", "late", "closed"];

/// The numbers of the gRPC status codes, as labels.
const GRPC_CODES: [&str; 17] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
];

/// The counters of a server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// The number of decisions by rule and outcome.
    pub outcomes: Outcomes,
    /// The number of decisions of `CL.THROTTLE` by outcome.
    pub throttle: RuleOutcomes,
    /// The time from reading a batch of RESP requests until its replies are ready.
    pub resp_batch: Histogram,
    /// The time from the end of an HTTP request until its response is ready.
    pub http_request: Histogram,
    /// The number of RESP requests.
    pub resp_requests: Counter,
    /// The number of requests that no rule matched.
    pub unmatched: Counter,
    /// The number of proxied requests that passed without a verdict, by reason.
    pub unjudged: PassedUnjudged,
    /// The number of malformed requests.
    pub malformed: Counter,
    /// The number of requests with a wrong token.
    pub failed_logins: Counter,
    /// The number of accepted connections.
    pub accepted: Counter,
    /// The number of connections that were refused because of a limit.
    pub refused: Counter,
    /// The number of connections that were closed because a timeout passed or memory ran short.
    pub shed: Counter,
    /// The number of reloads that took effect.
    pub reloads: Counter,
    /// The number of reloads that were refused because the configuration was invalid.
    pub failed_reloads: Counter,
    resp_errors: CountsByName<{ CODES.len() }>,
    http_responses: CountsByName<{ STATUSES.len() }>,
    grpc_responses: CountsByName<{ GRPC_CODES.len() }>,
    proxy_heads: CountsByName<{ PROXY_HEADS.len() }>,
}

impl Metrics {
    /// Counts an HTTP response by its status.
    #[inline]
    pub fn count_status(&self, status: u16) {
        self.http_responses.count(&STATUSES, &status);
    }

    /// Counts a gRPC response by its status code.
    #[inline]
    pub fn count_grpc(&self, code: &[u8]) {
        self.grpc_responses
            .count(&GRPC_CODES.map(str::as_bytes), &code);
    }

    /// Counts an error reply over RESP by its code.
    pub fn count_error(&self, code: &'static str) {
        self.resp_errors.count(&CODES, &code);
    }

    /// Counts a connection of a load balancer by the result of reading its PROXY head.
    pub fn count_proxy_head(&self, result: &'static str) {
        self.proxy_heads.count(&PROXY_HEADS, &result);
    }

    /// Returns the counters and the given families, as far as they have values, in the Prometheus text format.
    pub fn render(&self, families: Vec<Family>) -> Vec<u8> {
        let counters = self.counters().into_iter();
        let counters = counters
            .map(|(name, help, counter)| Family::counter(name, help).value(counter.get() as f64));
        let own = counters
            .chain(self.by_label())
            .chain(self.times())
            .chain(families);
        let text: String = own.chain(family::of_process()).map(Family::text).collect();
        text.into_bytes()
    }

    fn by_label(&self) -> [Family; 8] {
        let errors = self.resp_errors.seen(&CODES);
        let responses = self.http_responses.seen(&STATUSES);
        let calls = self.grpc_responses.seen(&GRPC_CODES);
        let rules = self.outcomes.each();
        let by_rule = |count: fn(&RuleOutcomes) -> u64| {
            let counts = rules.iter();
            counts.map(move |(rule, outcomes)| (rule.clone(), count(outcomes) as f64))
        };
        let heads = self.proxy_heads.seen(&PROXY_HEADS);
        let version = [(env!("CARGO_PKG_VERSION"), 1.0)];
        [
            Family::counter("earrrl_decisions_total", "Decisions by rule and outcome.")
                .with_labels(self.decisions()),
            Family::counter(
                "earrrl_missing_attributes_total",
                "Requests that lacked an attribute of the rule's key.",
            )
            .labelled("rule", by_rule(|rule| rule.missing.get())),
            Family::counter(
                "earrrl_invalid_costs_total",
                "Requests whose attribute for the cost is no cost, which count as the rule's max_cost.",
            )
            .labelled("rule", by_rule(|rule| rule.invalid_costs.get())),
            Family::counter("earrrl_resp_errors_total", "Errors answered over RESP.")
                .labelled("code", errors),
            Family::counter("earrrl_http_responses_total", "HTTP answers by status.")
                .labelled("status", responses),
            Family::counter(
                "earrrl_grpc_responses_total",
                "gRPC answers by the code's number.",
            )
            .labelled("code", calls),
            Family::counter(
                "earrrl_proxy_heads_total",
                "PROXY protocol heads by result.",
            )
            .labelled("result", heads),
            Family::gauge("earrrl_build_info", "The version.").labelled("version", version),
        ]
    }

    fn times(&self) -> [Family; 2] {
        let http = vec![("protocol", "http".to_owned())];
        let resp = "Time from reading RESP requests that came together to the last one's answer.";
        [
            Family::histogram(
                "earrrl_request_seconds",
                "Time from an HTTP request's body to its answer.",
                &http,
                &self.http_request,
            ),
            Family::histogram(
                "earrrl_resp_batch_seconds",
                resp,
                &Vec::new(),
                &self.resp_batch,
            ),
        ]
    }

    fn decisions(&self) -> Vec<(Labels, f64)> {
        let of = |rule: &str, outcomes: &RuleOutcomes| {
            OUTCOMES.map(|outcome| {
                let labels = vec![
                    ("rule", rule.to_owned()),
                    ("outcome", outcome.name().to_owned()),
                ];
                (labels, outcomes.get(outcome) as f64)
            })
        };
        let rules = self.outcomes.each();
        let rules = rules.iter().flat_map(|(rule, outcomes)| of(rule, outcomes));
        rules.chain(of("CL.THROTTLE", &self.throttle)).collect()
    }

    fn counters(&self) -> [(&'static str, &'static str, &Counter); 9] {
        // The pattern lists all fields without `..`, so that the compiler reports a new counter
        // that is not exported.
        let Self {
            outcomes: _,
            throttle: _,
            resp_batch: _,
            http_request: _,
            resp_requests,
            unmatched,
            unjudged: _,
            malformed,
            failed_logins,
            accepted,
            refused,
            shed,
            reloads,
            failed_reloads,
            resp_errors: _,
            http_responses: _,
            grpc_responses: _,
            proxy_heads: _,
        } = self;
        [
            (
                "earrrl_resp_requests_total",
                "RESP requests.",
                resp_requests,
            ),
            (
                "earrrl_unmatched_total",
                "Requests that no rule matched.",
                unmatched,
            ),
            (
                "earrrl_malformed_requests_total",
                "Malformed requests.",
                malformed,
            ),
            ("earrrl_failed_logins_total", "Wrong tokens.", failed_logins),
            (
                "earrrl_connections_accepted_total",
                "Connections accepted.",
                accepted,
            ),
            (
                "earrrl_connections_refused_total",
                "Connections over a limit.",
                refused,
            ),
            (
                "earrrl_connections_shed_total",
                "Connections closed for slowness or memory.",
                shed,
            ),
            ("earrrl_reloads_total", "Reloads that took effect.", reloads),
            (
                "earrrl_reload_failures_total",
                "Reloads refused.",
                failed_reloads,
            ),
        ]
    }
}

/// The reason why a proxied request passed without a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassReason {
    /// A rule could not be judged, and its `on_error` or the engine's policy allows such requests.
    RuleFailed,
    /// No decision was made before the caller's deadline, and the policy allows such requests.
    Late,
    /// The server replied with an error, upon which a proxy lets the request pass.
    Refused,
}

impl PassReason {
    /// All reasons, in the order of their metrics.
    pub const ALL: [Self; 3] = [Self::RuleFailed, Self::Late, Self::Refused];

    /// Returns the name of the reason in metrics and in `/readyz`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RuleFailed => "rule_failed",
            Self::Late => "late",
            Self::Refused => "refused",
        }
    }
}

/// The number of requests that passed without a verdict, by reason.
#[derive(Debug, Default)]
pub struct PassedUnjudged([Counter; PassReason::ALL.len()]);

impl PassedUnjudged {
    /// Counts one request that passed for this reason.
    pub fn count(&self, reason: PassReason) {
        self.0[reason as usize].increment();
    }

    /// Returns the number of requests that passed for this reason.
    pub fn get(&self, reason: PassReason) -> u64 {
        self.0[reason as usize].get()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use earrrl::Outcome;

    use super::*;

    #[test]
    fn counts_show_in_prometheus_text() {
        let metrics = Metrics::default();
        metrics.outcomes.of_rule("login").count(Outcome::Deny);
        metrics.outcomes.of_rule("login").count(Outcome::Deny);
        metrics.throttle.count(Outcome::Allow);
        metrics.resp_batch.record(Duration::from_micros(30));
        metrics.resp_batch.record(Duration::from_secs(2));
        metrics.count_status(429);
        metrics.count_status(599);
        metrics.count_error("NOAUTH");
        let text = metrics.render(vec![
            Family::gauge("earrrl_connections", "Connections.").value(3.0),
        ]);
        let text = String::from_utf8(text).unwrap();
        for line in [
            "earrrl_decisions_total{rule=\"login\",outcome=\"deny\"} 2",
            "earrrl_decisions_total{rule=\"login\",outcome=\"allow\"} 0",
            "earrrl_decisions_total{rule=\"CL.THROTTLE\",outcome=\"allow\"} 1",
            "earrrl_resp_batch_seconds_bucket{le=\"0.00005\"} 1",
            "earrrl_resp_batch_seconds_bucket{le=\"+Inf\"} 2",
            "earrrl_resp_batch_seconds_sum 2.00003",
            "earrrl_request_seconds_count{protocol=\"http\"} 0",
            "earrrl_http_responses_total{status=\"429\"} 1",
            "earrrl_http_responses_total{status=\"other\"} 1",
            "earrrl_resp_errors_total{code=\"NOAUTH\"} 1",
            "# TYPE earrrl_decisions_total counter",
            concat!(
                "earrrl_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            ),
            "earrrl_connections 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("process_resident_memory_bytes "), "{text}");
    }
}
