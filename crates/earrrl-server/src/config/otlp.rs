//! The `[server.otlp]` table: the OpenTelemetry collector that gets metrics and events.

use super::envoy::{PlaneTls, peer};
use super::file;
use super::problem::Problems;
use super::value::seconds;

/// The usual number of seconds between two exports of metrics, as in OpenTelemetry's SDKs.
const USUAL_INTERVAL: u32 = 60;

/// The validated `[server.otlp]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpConfig {
    /// The collector's address, `host:port`, which speaks OTLP over gRPC.
    pub address: String,
    /// The TLS files of the connection; `None` for an unencrypted connection.
    pub tls: Option<PlaneTls>,
    /// The number of seconds between two exports of metrics.
    pub interval: u32,
    /// True if events are sent, too.
    pub events: bool,
}

impl OtlpConfig {
    pub(super) fn validate(file: &file::OtlpTable, problems: &mut Problems) -> Option<Self> {
        let endpoint = &file.endpoint;
        if !cfg!(feature = "otlp") {
            let text =
                "endpoint: this program was built without OTLP; build it with --features otlp";
            problems.add(endpoint.span(), text);
            return None;
        }
        let field = file.interval.as_ref();
        let interval = seconds("interval", field, USUAL_INTERVAL, 1..=3600, problems);
        match peer(endpoint.get_ref()) {
            Ok((address, tls)) => Some(Self {
                address,
                tls,
                interval,
                events: file.events,
            }),
            Err(why) => {
                problems.add(endpoint.span(), format!("endpoint: {why}"));
                None
            }
        }
    }
}
