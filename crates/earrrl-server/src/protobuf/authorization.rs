//! The messages of Envoy's external authorization service, `envoy.service.auth.v3`.

use std::collections::HashMap;

use super::{HeaderValue, RpcStatus, Struct};

/// A request for a decision whether an HTTP request may pass.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CheckRequest {
    /// The attributes of the HTTP request.
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<AttributeContext>,
}

/// The attributes of an HTTP request and of its connection.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AttributeContext {
    /// The client that is connected with Envoy.
    #[prost(message, optional, tag = "1")]
    pub source: Option<Peer>,
    /// The HTTP request that is to be decided.
    #[prost(message, optional, tag = "4")]
    pub request: Option<Request>,
}

/// One end of a connection, such as the client's.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Peer {
    /// The address of this end of the connection.
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
}

/// An address, `envoy.config.core.v3.Address`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Address {
    /// The address by its kind; absent for a kind that this server does not read.
    #[prost(oneof = "AddressKind", tags = "1, 2")]
    pub address: Option<AddressKind>,
}

/// An address of one of the kinds that this server reads.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum AddressKind {
    /// An IP address.
    #[prost(message, tag = "1")]
    Socket(SocketAddress),
    /// A Unix domain socket.
    #[prost(message, tag = "2")]
    Pipe(Pipe),
}

/// An IP address and a port.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SocketAddress {
    /// The IP address as text.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// A Unix domain socket.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pipe {}

/// A request by its protocol.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// The HTTP request.
    #[prost(message, optional, tag = "2")]
    pub http: Option<HttpRequest>,
}

/// An HTTP request without its body.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpRequest {
    /// The HTTP method.
    #[prost(bytes = "vec", tag = "2")]
    pub method: Vec<u8>,
    /// The headers by their names in lower case; repeated ones are joined.
    #[prost(map = "string, bytes", tag = "3")]
    pub headers: HashMap<String, Vec<u8>>,
    /// The path with its query.
    #[prost(bytes = "vec", tag = "4")]
    pub path: Vec<u8>,
    /// The `Host` header or `:authority`.
    #[prost(bytes = "vec", tag = "5")]
    pub host: Vec<u8>,
    /// The scheme of the request's URL.
    #[prost(bytes = "vec", tag = "6")]
    pub scheme: Vec<u8>,
    /// The headers in their order, if Envoy is configured to send them unchanged; `headers` is then
    /// empty.
    #[prost(message, optional, tag = "13")]
    pub header_map: Option<HeaderMap>,
}

/// A list of headers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderMap {
    /// The headers; a name may occur more than once.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// The response to a [`CheckRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct CheckResponse {
    /// The verdict: `OK` if the request may pass.
    #[prost(message, optional, tag = "1")]
    pub status: Option<RpcStatus>,
    /// Metadata for Envoy's filters and access logs.
    #[prost(message, optional, tag = "4")]
    pub dynamic_metadata: Option<Struct>,
    /// The changes to the request, or the response to the client.
    #[prost(oneof = "HttpResponse", tags = "2, 3")]
    pub http_response: Option<HttpResponse>,
}

/// The changes to a request, or the response to its client.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum HttpResponse {
    /// The request is denied, with this response to the client.
    #[prost(message, tag = "2")]
    Denied(DeniedHttpResponse),
    /// The request passes, with these changes.
    #[prost(message, tag = "3")]
    Ok(OkHttpResponse),
}

/// The response to a client whose request is denied.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeniedHttpResponse {
    /// The HTTP status of the response.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// The headers of the response.
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    /// The body of the response.
    #[prost(string, tag = "3")]
    pub body: String,
}

/// An HTTP status.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpStatus {
    /// The number of the status, such as 429.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// The changes to a request that may pass.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OkHttpResponse {
    /// The headers that are added to the request to the application behind Envoy.
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    /// The headers that are added to the response to the client.
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: Vec<HeaderValueOption>,
}

/// A header that is added, and the way in which it is added.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValueOption {
    /// The header that is added.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// The treatment of existing headers of the same name.
    #[prost(enumeration = "HeaderAppendAction", tag = "3")]
    pub append_action: i32,
}

/// The treatment of existing headers that have the same name as an added one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum HeaderAppendAction {
    /// Existing headers stay, and the new one is added.
    AppendIfExistsOrAdd = 0,
    /// Existing headers stay; the new one is added only if there are none.
    AddIfAbsent = 1,
    /// The new header replaces existing ones, or is added if there are none.
    OverwriteIfExistsOrAdd = 2,
    /// The new header replaces existing ones, and is not added if there are none.
    OverwriteIfExists = 3,
}
