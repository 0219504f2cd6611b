//! Tests that Envoy's messages are encoded and decoded as `protoc` does it by Envoy's own `.proto`
//! files.
#![allow(clippy::unwrap_used)]

use std::fmt::Debug;

use earrrl_server::protobuf::authorization::{
    Address, AddressKind, AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse,
    HeaderAppendAction, HeaderMap, HeaderValueOption, HttpRequest, HttpResponse, HttpStatus,
    OkHttpResponse, Peer, Request, SocketAddress,
};
use earrrl_server::protobuf::discovery::{
    DiscoveryRequest, DiscoveryResponse, Node, RateLimitConfig, RateLimitDescriptor as Configured,
    RateLimitPolicy, RateLimitReplace,
};
use earrrl_server::protobuf::ratelimit::{
    Code, DescriptorStatus, Entry, RateLimit, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse,
};
use earrrl_server::protobuf::value::Kind;
use earrrl_server::protobuf::{Any, Duration, HeaderValue, RpcStatus, Struct, Value};
use prost::Message;

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |place| u8::from_str_radix(&hex[place..place + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Checks that the bytes decode to the message; unknown fields are skipped.
fn reads<M: Message + Default + PartialEq + Debug>(hex: &str, expected: &M) {
    assert_eq!(&M::decode(&bytes(hex)[..]).unwrap(), expected);
}

/// Checks that the message is encoded to the bytes, and that they decode to the message.
fn writes<M: Message + Default + PartialEq + Debug>(hex: &str, expected: &M) {
    reads(hex, expected);
    assert_eq!(expected.encode_to_vec(), bytes(hex));
}

fn object(name: &str, kind: Kind) -> Option<Struct> {
    Some(Struct {
        fields: [(name.to_owned(), Value { kind: Some(kind) })].into(),
    })
}

fn header(key: &str, value: &str, raw: &[u8]) -> HeaderValue {
    HeaderValue {
        key: key.into(),
        value: value.into(),
        raw_value: raw.into(),
    }
}

fn option(key: &str, value: &str, action: HeaderAppendAction) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(header(key, value, b"")),
        append_action: action.into(),
    }
}

#[test]
fn the_rate_limit_services_messages_are_envoys() {
    let entry = |key: &str, value: &str| Entry {
        key: key.into(),
        value: value.into(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry("path", "/login"), entry("user", "alice")],
        limit: Some(RateLimitOverride {
            requests_per_unit: 7,
            unit: 3,
        }),
        hits_addend: Some(3),
        is_negative_hits: true,
    };
    writes(
        "0a0473686f70122b0a0e0a047061746812062f6c6f67696e0a0d0a04757365721205616c6963651204080710031a02080320011802",
        &RateLimitRequest {
            domain: "shop".into(),
            descriptors: vec![descriptor],
            hits_addend: 2,
        },
    );
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: 5,
            unit: 2,
            name: "five".into(),
        }),
        limit_remaining: 4,
        duration_until_reset: Some(Duration {
            seconds: 9,
            nanos: 8,
        }),
    };
    writes(
        "080212160801120a080510021a046669766518042204080910081a090a01611201621a016322060a01641201652a04626f6479320a0a080a016b12031a0176",
        &RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![status],
            response_headers_to_add: vec![header("a", "b", b"c")],
            request_headers_to_add: vec![header("d", "e", b"")],
            raw_body: b"body".to_vec(),
            dynamic_metadata: object("k", Kind::StringValue("v".into())),
        },
    );
}

/// Envoy copies a client's header into a value without changing its bytes.
#[test]
fn values_may_be_any_bytes() {
    let entry = Entry {
        key: "user".into(),
        value: b"a\xff\x01".to_vec(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        ..Default::default()
    };
    let request = RateLimitRequest {
        domain: "shop".into(),
        descriptors: vec![descriptor],
        hits_addend: 1,
    };
    assert_eq!(
        RateLimitRequest::decode(&*request.encode_to_vec()).unwrap(),
        request
    );
}

#[test]
fn the_authorization_services_messages_are_envoys() {
    let address = AddressKind::Socket(SocketAddress {
        address: "192.0.2.7".into(),
    });
    let http = HttpRequest {
        method: "POST".into(),
        headers: [("x-api-key".to_owned(), b"k".to_vec())].into(),
        path: "/login?a=b".into(),
        host: "shop.example".into(),
        scheme: "https".into(),
        header_map: Some(HeaderMap {
            headers: vec![header("cookie", "", b"a\xff")],
        }),
    };
    let attributes = AttributeContext {
        source: Some(Peer {
            address: Some(Address {
                address: Some(address),
            }),
        }),
        request: Some(Request { http: Some(http) }),
    };
    reads(
        "0a94010a1b0a100a0e12093139322e302e322e3718bb031207736b697070656422610a020801125b0a01311204504f53541a0e0a09782d6170692d6b657912016b220a2f6c6f67696e3f613d622a0c73686f702e6578616d706c65320568747470735206485454502f325a07736b69707065646a0e0a0c0a06636f6f6b69651a0261ff52120a07736b69707065641207736b6970706564",
        &CheckRequest {
            attributes: Some(attributes),
        },
    );
    let denied = DeniedHttpResponse {
        status: Some(HttpStatus { code: 429 }),
        headers: vec![option(
            "retry-after",
            "9",
            HeaderAppendAction::OverwriteIfExistsOrAdd,
        )],
        body: "later".into(),
    };
    reads(
        "0a08080812046f76657212220a0308ad0312140a100a0b72657472792d616674657212013918021a056c6174657222100a0e0a016e120911000000000000f83f",
        &CheckResponse {
            status: Some(RpcStatus {
                code: 8,
                message: "over".into(),
            }),
            dynamic_metadata: object("n", Kind::NumberValue(1.5)),
            http_response: Some(HttpResponse::Denied(denied)),
        },
    );
    let passed = OkHttpResponse {
        headers: vec![option("a", "b", HeaderAppendAction::AddIfAbsent)],
        response_headers_to_add: vec![option("c", "d", HeaderAppendAction::OverwriteIfExists)],
    };
    writes(
        "0a001a18120a0a060a01611201621801320a0a060a01631201641803",
        &CheckResponse {
            status: Some(RpcStatus::default()),
            dynamic_metadata: None,
            http_response: Some(HttpResponse::Ok(passed)),
        },
    );
}

#[test]
fn a_control_planes_messages_are_envoys() {
    writes(
        "0a013112030a016e2201742a016f3205080312016d",
        &DiscoveryRequest {
            version_info: "1".into(),
            node: Some(Node { id: "n".into() }),
            type_url: "t".into(),
            response_nonce: "o".into(),
            error_detail: Some(RpcStatus {
                code: 3,
                message: "m".into(),
            }),
        },
    );
    reads(
        "0a013112060a017412017618012201742a016f32090a07736b6970706564",
        &DiscoveryResponse {
            version_info: "1".into(),
            resources: vec![Any {
                type_url: "t".into(),
                value: b"v".to_vec(),
            }],
            type_url: "t".into(),
            nonce: "o".into(),
        },
    );
    let policy = RateLimitPolicy {
        unit: 6,
        requests_per_unit: 2,
        unlimited: true,
        name: "n".into(),
        replaces: vec![RateLimitReplace { name: "r".into() }],
    };
    let below = Configured {
        key: "l".into(),
        ..Configured::default()
    };
    let descriptor = Configured {
        key: "k".into(),
        value: "v".into(),
        rate_limit: Some(policy),
        descriptors: vec![below],
        shadow_mode: true,
        detailed_metric: true,
        quota_mode: true,
        metadata: object("b", Kind::BoolValue(true)),
    };
    writes(
        "0a01631201641a2c0a016b1201761a0e08061002180122016e2a030a017222030a016c28013001380142090a070a016212022001",
        &RateLimitConfig {
            name: "c".into(),
            domain: "d".into(),
            descriptors: vec![descriptor],
        },
    );
}
