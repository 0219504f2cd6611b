//! An actix-web service with a limit for each client. After `cargo run`, the sixth of these requests gets a 429:
//! `for i in $(seq 6); do curl -si http://127.0.0.1:8000/ | head -1; done`

mod rate_limit;

use actix_web::middleware::from_fn;
use actix_web::web::Data;
use actix_web::{App, HttpServer, web};
use earrrl::MemoryEngine;
use earrrl_tower::{ClientAddress, RateLimitLayer, RequestRule};

use crate::rate_limit::rate_limit;

#[actix_web::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Behind a proxy: `ClientAddress::default().trust("10.0.0.0/8".parse()?)`.
    let per_address = RequestRule::new(
        "address",
        "gcra 1/s burst=5".parse()?,
        ClientAddress::default(),
    );
    let layer = RateLimitLayer::builder(MemoryEngine::new(100_000)?)
        .rule(per_address)
        .build()?;
    // Made outside of the closure, which runs once for each worker: all workers share the limit.
    let layer = Data::new(layer);
    let app = move || {
        let hello = web::get().to(|| async { "hello" });
        App::new()
            .app_data(layer.clone())
            .wrap(from_fn(rate_limit))
            .route("/", hello)
    };
    Ok(HttpServer::new(app).bind("127.0.0.1:8000")?.run().await?)
}

#[cfg(test)]
mod tests {
    use actix_web::test::{TestRequest, call_and_read_body, call_service, init_service};

    use super::*;

    fn layer(limit: &str, address: ClientAddress) -> Data<RateLimitLayer<MemoryEngine>> {
        let rule = RequestRule::new("address", limit.parse().unwrap(), address);
        let layer = RateLimitLayer::builder(MemoryEngine::new(100).unwrap()).rule(rule);
        Data::new(layer.build().unwrap())
    }

    macro_rules! app {
        ($layer:expr) => {{
            let hello = web::get().to(|| async { "hello" });
            let app = App::new()
                .app_data($layer)
                .wrap(from_fn(rate_limit))
                .route("/", hello);
            init_service(app).await
        }};
    }

    #[actix_web::test]
    async fn the_sixth_request_of_a_client_is_denied() {
        let app = app!(layer("gcra 1/h burst=5", ClientAddress::default()));
        for (client, status) in [("192.0.2.7:1", 200); 5]
            .into_iter()
            .chain([("192.0.2.7:2", 429), ("192.0.2.8:1", 200)])
        {
            let request = TestRequest::get()
                .uri("/")
                .peer_addr(client.parse().unwrap());
            let response = call_service(&app, request.to_request()).await;
            assert_eq!(response.status(), status, "{client}");
            assert_eq!(
                response.headers().contains_key("retry-after"),
                status == 429
            );
            assert!(response.headers().contains_key("ratelimit"), "{client}");
        }
        let request = TestRequest::get()
            .uri("/")
            .peer_addr("192.0.2.7:1".parse().unwrap());
        let body = call_and_read_body(&app, request.to_request()).await;
        assert!(body.starts_with(b"{\"type\":"), "{body:?}");
    }

    /// A customer has at least a /64 of addresses.
    #[actix_web::test]
    async fn the_addresses_of_a_network_are_one_client() {
        let app = app!(layer("gcra 1/h burst=1", ClientAddress::default()));
        for (client, status) in [
            ("[2001:db8::1]:1", 200),
            ("[2001:db8::2]:1", 429),
            ("[2001:db8:0:1::1]:1", 200),
        ] {
            let request = TestRequest::get()
                .uri("/")
                .peer_addr(client.parse().unwrap());
            assert_eq!(
                call_service(&app, request.to_request()).await.status(),
                status,
                "{client}"
            );
        }
    }

    /// The proxy adds the line with the client's address after the lines that the client sent.
    #[actix_web::test]
    async fn a_client_cannot_invent_addresses_behind_a_proxy() {
        let address = ClientAddress::default().trust("10.0.0.0/8".parse().unwrap());
        let app = app!(layer("gcra 1/h burst=1", address));
        let invented = [&b"198.51.100.1"[..], b"198.51.100.2", b"\xff"];
        for (invented, status) in invented.into_iter().zip([200, 429, 429]) {
            let request = TestRequest::get()
                .uri("/")
                .peer_addr("10.0.0.1:1".parse().unwrap());
            let request = request
                .append_header(("x-forwarded-for", invented))
                .append_header(("x-forwarded-for", "192.0.2.7"));
            assert_eq!(
                call_service(&app, request.to_request()).await.status(),
                status,
                "{invented:?}"
            );
        }
    }
}
