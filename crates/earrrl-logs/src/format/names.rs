//! The usual names of fields, for formats whose lines or headers name the fields.

use super::Field;

/// The usual names of the field with the time.
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
    // Fields in the logs of Kong.
    "started_at",
    // Fields in the logs of Traefik.
    "StartUTC",
    // Fields in the logs of Cloudflare.
    "EdgeStartTimestamp",
    "Datetime",
    // Fields in the logs of API Gateway.
    "requestTimeEpoch",
    "requestTime",
    // Fields in the logs of Fastly, Vercel and Azure.
    "timestampInMs",
    "TimeGenerated",
    "timeStamp",
    "date",
];

/// The usual names of the field with the client. The names of fields in which a proxy reports the
/// client precede those of the connection's peer.
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
    // Fields in the logs of Envoy and Istio.
    "downstream_remote_address",
    // Fields in the logs of Traefik.
    "ClientHost",
    "ClientAddr",
    // Fields in the logs of Cloudflare.
    "ClientIP",
    // Fields in the logs of Google Cloud.
    "httpRequest.remoteIp",
    // Fields in the logs of AWS API Gateway and AWS WAF.
    "sourceIp",
    "requestContext.identity.sourceIp",
    "requestContext.http.sourceIp",
    "identity.sourceIp",
    "httpRequest.clientIp",
    // Fields in the logs of Azure.
    "properties.clientIP",
    "properties.clientIp",
    // Fields in the logs of various other programs.
    "remoteAddress",
    "req.remoteAddress",
    // Fields in the logs of Suricata and Zeek.
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

/// The usual names of the field with a list of addresses, to which each proxy appends its peer's
/// address.
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

/// Returns the first value that `find` finds under one of the usual names of a field.
pub(super) fn first<T>(field: &Field, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let names: &[&str] = match field {
        Field::Client => &CLIENTS,
        Field::User => &USERS,
        Field::Path => &PATHS,
        Field::Forwarded => &FORWARDED,
        Field::Named(name) => return find(name),
    };
    let found = names.iter().find_map(|name| find(name));
    // If there is no field for the client, the list of forwarded addresses contains the client.
    match field {
        Field::Client => found.or_else(|| FORWARDED.iter().find_map(|name| find(name))),
        _ => found,
    }
}
