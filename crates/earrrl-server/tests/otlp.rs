//! Tests what an OpenTelemetry collector gets: the metrics of `/metrics`, and the events of clients.
#![cfg(feature = "otlp")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as NumberValue;
use opentelemetry_proto::tonic::metrics::v1::{Metric, NumberDataPoint};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::command::earrrl;
use crate::support::{TestServer, until};

/// A collector that keeps what it gets.
#[derive(Clone, Default)]
struct Collector {
    metrics: Arc<Mutex<BTreeMap<String, Metric>>>,
    records: Arc<Mutex<Vec<LogRecord>>>,
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let resources = request.into_inner().resource_metrics;
        let scopes = resources
            .into_iter()
            .flat_map(|resource| resource.scope_metrics);
        let metrics = scopes.flat_map(|scope| scope.metrics);
        self.metrics
            .lock()
            .unwrap()
            .extend(metrics.map(|metric| (metric.name.clone(), metric)));
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let resources = request.into_inner().resource_logs;
        let scopes = resources
            .into_iter()
            .flat_map(|resource| resource.scope_logs);
        self.records
            .lock()
            .unwrap()
            .extend(scopes.flat_map(|scope| scope.log_records));
        Ok(Response::new(Default::default()))
    }
}

impl Collector {
    /// Serves on this listener until the test ends.
    fn serve(&self, listener: TcpListener) {
        let metrics = MetricsServiceServer::new(self.clone());
        let logs = LogsServiceServer::new(self.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        thread::spawn(move || {
            runtime.block_on(async {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let server = tonic::transport::Server::builder()
                    .add_service(metrics)
                    .add_service(logs);
                server
                    .serve_with_incoming(TcpListenerStream::new(listener))
                    .await
                    .unwrap();
            });
        });
    }

    /// Returns the sum of the counter's values whose attributes include these.
    fn counter(&self, name: &str, attributes: &[(&str, &str)]) -> Option<f64> {
        let metrics = self.metrics.lock().unwrap();
        let Data::Sum(sum) = metrics.get(name)?.data.as_ref()? else {
            panic!("{name} is no counter")
        };
        let is_meant = |point: &&NumberDataPoint| {
            attributes
                .iter()
                .all(|(key, value)| text(&point.attributes, key).as_deref() == Some(value))
        };
        let points = sum.data_points.iter().filter(is_meant);
        Some(
            points
                .map(|point| match point.value {
                    Some(NumberValue::AsDouble(value)) => value,
                    other => panic!("{name}: {other:?}"),
                })
                .sum(),
        )
    }

    /// Returns the kind, rule and key of each event.
    fn events(&self) -> Vec<[String; 3]> {
        let records = self.records.lock().unwrap();
        let field = |record: &LogRecord, name| text(&record.attributes, name).unwrap_or_default();
        records
            .iter()
            .map(|record| {
                [
                    record.event_name.clone(),
                    field(record, "earrrl.rule"),
                    field(record, "earrrl.key"),
                ]
            })
            .collect()
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        other => Some(format!("{other:?}")),
    }
}

fn config(listener: &TcpListener, rest: &str) -> String {
    let endpoint = listener.local_addr().unwrap();
    format!(
        "[server.otlp]\nendpoint = \"http://{endpoint}\"\ninterval = \"1s\"\n{rest}\n\
         [[rule]]\nname = \"login\"\nlimit = \"gcra 1/m burst=2\"\nkey = \"user\"\n"
    )
}

#[test]
fn a_collector_gets_metrics_and_events() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = TestServer::start(&config(&listener, "events = true"));
    let check = || {
        server
            .http()
            .post("/v1/check", r#"{"rule":"login","key":"ann"}"#)
    };
    for _ in 0..5 {
        check();
    }
    // Until now nobody accepts what the server sends; its connection is answered later.
    let collector = Collector::default();
    collector.serve(listener);
    let denied = [("rule", "login"), ("outcome", "deny")];
    until("the denials arrive", || {
        collector.counter("earrrl_decisions_total", &denied) == Some(3.0)
    });
    assert_eq!(
        collector.counter(
            "earrrl_decisions_total",
            &[("outcome", "allow"), ("rule", "login")]
        ),
        Some(2.0)
    );
    let metrics = collector.metrics.lock().unwrap().clone();
    let Some(Data::Histogram(times)) = &metrics["earrrl_request_seconds"].data else {
        panic!()
    };
    let point = &times.data_points[0];
    assert_eq!((point.count, point.bucket_counts.iter().sum()), (5, 5));
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    assert!(matches!(
        metrics["earrrl_connections"].data,
        Some(Data::Gauge(_))
    ));
    let event = |kind: &str| [kind, "login", "ann"].map(str::to_owned);
    until("the event arrives", || {
        collector.events().contains(&event("earrrl.limited"))
    });
    assert_eq!(
        server
            .http()
            .request("DELETE", "/v1/clients/login/ann", "", b"")
            .status,
        204
    );
    until("the reset arrives", || {
        collector.events().contains(&event("earrrl.reset"))
    });
}

#[test]
fn an_endpoint_must_be_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let text = "[server.otlp]\nendpoint = \"http://collector/v1/metrics\"\n\
                [[rule]]\nname = \"r\"\nlimit = \"gcra 1/m burst=2\"\n";
    std::fs::write(&file, text).unwrap();
    let checked = earrrl(&["config", "check", file.to_str().unwrap()]);
    assert!(
        checked
            .err
            .contains("endpoint: expected host:port, http://host:port or https://host:port"),
        "{}",
        checked.err
    );
}
