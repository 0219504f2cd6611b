//! The OpenAPI document of a server: what the file says, of the routes and tokens that this one has.

use axum::body::Bytes;
use serde_json::Value;

use super::authz;
use crate::server::Server;

const DOCUMENT: &str = include_str!("openapi.json");

/// The methods by which a proxy may ask, beside GET: those of its client's requests.
const METHODS: [&str; 8] = ["delete", "head", "options", "patch", "post", "put", "query", "trace"];

/// The document.
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
