//! Sends metrics and events to an OpenTelemetry collector, over OTLP/gRPC.
//!
//! The metrics are those of `/metrics`, so they are converted instead of being counted a second time by
//! OpenTelemetry's SDK. The events are those of `/v1/events`.

mod logs;
mod metrics;
mod parts;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use tokio::time::timeout;
use tonic::transport::Channel;

use super::dial::{channel, why};
use super::ticks::each_second;
use crate::config::otlp::OtlpConfig;
use crate::server::Server;
use crate::service::event_source::EventSource;

/// The time within which the collector must answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends metrics, and events if they are wanted, until the server ends. What a collector does not take is lost: the
/// next metrics contain the counts of those before.
pub(super) async fn export_forever(server: Arc<Server>, config: OtlpConfig) {
    let events = config.events.then(|| EventSource::new(&server.service));
    let mut exporter = Exporter {
        server,
        config,
        events,
        channel: None,
        started: now(),
        failed: false,
    };
    let mut seconds = each_second();
    let mut until_metrics = exporter.config.interval;
    loop {
        seconds.tick().await;
        until_metrics -= 1;
        let has_metrics = until_metrics == 0;
        if has_metrics {
            until_metrics = exporter.config.interval;
        }
        let sent = timeout(PATIENCE, exporter.export(has_metrics)).await;
        exporter.note(match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(why(&*error)),
            Err(_) => Some(format!("no answer within {PATIENCE:?}")),
        });
    }
}

struct Exporter {
    server: Arc<Server>,
    config: OtlpConfig,
    events: Option<EventSource>,
    /// The connection; `None` before the first export and after an error.
    channel: Option<Channel>,
    /// The instant since which the metrics count, in nanoseconds since the Unix epoch.
    started: u64,
    /// True if the export before failed.
    failed: bool,
}

impl Exporter {
    /// Sends the events since the step before, and the metrics if they are due.
    async fn export(&mut self, has_metrics: bool) -> Result<(), Box<dyn Error + Send + Sync>> {
        let service = &self.server.service;
        let events = self
            .events
            .as_mut()
            .map(|source| source.step(service, |_| true));
        let events = events.filter(|events| !events.is_empty());
        if events.is_none() && !has_metrics {
            return Ok(());
        }
        let channel = match &self.channel {
            Some(channel) => channel.clone(),
            None => channel(&self.config.address, self.config.tls.as_ref()).await?,
        };
        self.channel = Some(channel.clone());
        if let Some(events) = events {
            let request = logs::request(events, service.now());
            LogsServiceClient::new(channel.clone())
                .export(request)
                .await?;
        }
        if has_metrics {
            let families = self.server.metric_families();
            let request = metrics::request(&families, self.started, now());
            MetricsServiceClient::new(channel).export(request).await?;
        }
        Ok(())
    }

    /// Logs the first error of several in a row, and the first success after it.
    fn note(&mut self, error: Option<String>) {
        match (&error, self.failed) {
            (Some(error), false) => {
                tracing::warn!(%error, "the OpenTelemetry collector takes nothing")
            }
            (None, true) => tracing::info!("the OpenTelemetry collector takes metrics again"),
            _ => {}
        }
        self.failed = error.is_some();
        if self.failed {
            self.channel = None;
        }
    }
}

/// Returns the nanoseconds since the Unix epoch.
fn now() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
