//! The OpenAPI document of a server: the file `openapi.json`, adapted to the routes and tokens that
//! this server is configured with.

use axum::body::Bytes;
use serde_json::Value;

use super::authz;
use crate::server::Server;

const DOCUMENT: &str = include_str!("openapi.json");

/// The methods, besides GET, that `/v1/authz` accepts. A proxy may use the method of its client's
/// request.
const METHODS: [&str; 8] = [
    "delete", "head", "options", "patch", "post", "put", "query", "trace",
];

/// Returns the OpenAPI document of `server`.
pub(super) fn document(server: &Server) -> Bytes {
    match serde_json::from_str(DOCUMENT) {
        Ok(document) => fitted(document, server).to_string().into(),
        Err(_) => Bytes::from_static(DOCUMENT.as_bytes()),
    }
}

fn fitted(mut document: Value, server: &Server) -> Value {
    let asked = &mut document["paths"][authz::PATH];
    for method in METHODS {
        asked[method] = asked["get"].clone();
        asked[method]["operationId"] = format!("authz-{method}").into();
    }
    if server.config.admin.is_some()
        && let Some(paths) = document["paths"].as_object_mut()
    {
        paths.remove("/metrics");
    }
    if !server.tokens().any()
        && let Some(document) = document.as_object_mut()
    {
        document.remove("security");
    }
    document
}
