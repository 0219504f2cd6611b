//! Testing one's own limits: the layer runs on a clock that is moved by hand, so an hour takes no
//! time.
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use earrrl::{ManualClock, MemoryEngine, Nanos};
use earrrl_tower::{RateLimitLayer, RequestRule, key};
use http::{Request, Response};
use http_body_util::Full;
use tower::{ServiceBuilder, ServiceExt, service_fn};

type Error = Box<dyn std::error::Error>;

/// The statuses of eleven requests at once, and of one an hour later.
pub(crate) async fn statuses() -> Result<Vec<u16>, Error> {
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let engine = MemoryEngine::with_clock(1000, Arc::clone(&clock))?;
    let rule = RequestRule::new("hourly", "fixed-window 10/1h".parse()?, key::Everyone);
    let layer = RateLimitLayer::builder(engine).rule(rule).build()?;
    let service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(async |_| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello\n"))))
        }));
    let mut statuses = Vec::new();
    for request in 0..12 {
        if request == 11 {
            clock.advance(Duration::from_secs(3600));
        }
        let response = service.clone().oneshot(Request::new(())).await?;
        statuses.push(response.status().as_u16());
    }
    Ok(statuses)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    assert_eq!(
        statuses().await?,
        [[200; 10].as_slice(), &[429, 200]].concat()
    );
    Ok(())
}
