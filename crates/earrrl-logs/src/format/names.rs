//! Under which names products keep what matters, where lines name their fields.

use super::Field;

/// Where the time usually is.
pub(super) const TIMES: [&str; 18] = [
    "time",
    "time_iso8601",
    "@timestamp",
    "timestamp",
    "ts",
    "msec",
    "time_local",
    "datetime",
    "start_time",
    // Kong
    "started_at",
    // Traefik
    "StartUTC",
    // Cloudflare
    "EdgeStartTimestamp",
    "Datetime",
    // API Gateway
    "requestTimeEpoch",
    "requestTime",
    // Fastly, Vercel, Azure
    "timestampInMs",
    "TimeGenerated",
    "date",
];

/// Where the client usually is. What a proxy has worked out goes before its peer's address.
const CLIENTS: [&str; 27] = [
    "client_ip",
    "remote_addr",
    "remote",
    "remote_ip",
    "request.client_ip",
    "request.remote_ip",
    "request.remote_addr",
    "client.ip",
    "source.ip",
    "clientip",
    "clientIp",
    "ip",
    "client",
    // Envoy, Istio
    "downstream_remote_address",
    // Traefik
    "ClientHost",
    "ClientAddr",
    // Cloudflare
    "ClientIP",
    // Google Cloud
    "httpRequest.remoteIp",
    // AWS: API Gateway, WAF
    "sourceIp",
    "requestContext.identity.sourceIp",
    "requestContext.http.sourceIp",
    "identity.sourceIp",
    "httpRequest.clientIp",
    // Azure
    "properties.clientIP",
    "properties.clientIp",
    // Others
    "remoteAddress",
    "req.remoteAddress",
];

const USERS: [&str; 11] = [
    "user",
    "remote_user",
    "user_id",
    "user.name",
    "username",
    "ClientUsername",
    "consumer.username",
    "authenticated_entity.consumer_id",
    "consumer.id",
    "caller",
    "request.user_id",
];

const PATHS: [&str; 16] = [
    "path",
    "uri",
    "request_uri",
    "request.uri",
    "url",
    "url.path",
    "RequestPath",
    "ClientRequestPath",
    "ClientRequestURI",
    "httpRequest.requestUrl",
    "httpRequest.uri",
    "resourcePath",
    "rawPath",
    "properties.requestUri",
    "req.url",
    "request_path",
];

/// Lists of addresses, to which each proxy adds the one it has seen.
const FORWARDED: [&str; 9] = [
    "x_forwarded_for",
    "forwarded_for",
    "http_x_forwarded_for",
    "x-forwarded-for",
    "X-Forwarded-For",
    "xff",
    "fwd",
    "request.headers.X-Forwarded-For",
    "request.headers.x-forwarded-for",
];

/// The first of a field's names under which `find` finds something.
pub(super) fn first<T>(field: &Field, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let names: &[&str] = match field {
        Field::Client => &CLIENTS,
        Field::User => &USERS,
        Field::Path => &PATHS,
        Field::Forwarded => &FORWARDED,
        Field::Named(name) => return find(name),
    };
    let found = names.iter().find_map(|name| find(name));
    // Where there is nothing else, what the last proxy has seen is the client.
    match field {
        Field::Client => found.or_else(|| FORWARDED.iter().find_map(|name| find(name))),
        _ => found,
    }
}
