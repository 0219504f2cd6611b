//! The usual names of fields, for formats whose lines or headers name them.

use super::Field;

/// The usual names of the time.
pub(super) const TIMES: [&str; 19] = [
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
    "timeStamp",
    "date",
];

/// The usual names of the client. An address that a proxy has determined precedes its peer's.
const CLIENTS: [&str; 30] = [
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
    // Suricata, Zeek
    "src_ip",
    "id.orig_h",
    "source_ip",
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

/// The usual names of lists of addresses, to which each proxy appends its peer's.
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

/// Returns the first value that `find` returns for the usual names of a field.
pub(super) fn first<T>(field: &Field, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let names: &[&str] = match field {
        Field::Client => &CLIENTS,
        Field::User => &USERS,
        Field::Path => &PATHS,
        Field::Forwarded => &FORWARDED,
        Field::Named(name) => return find(name),
    };
    let found = names.iter().find_map(|name| find(name));
    // Without a client field, a list of forwarded addresses holds the client.
    match field {
        Field::Client => found.or_else(|| FORWARDED.iter().find_map(|name| find(name))),
        _ => found,
    }
}
