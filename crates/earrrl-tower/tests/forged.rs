//! Headers that clients forge.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::support::{engine, layer, request, served};
use earrrl_tower::{AddressSource, ClientAddress, RequestRule};
use http::{HeaderValue, Request};
use proptest::prelude::*;

fn behind_proxy(source: AddressSource) -> RequestRule {
    let address = ClientAddress::default()
        .trust("10.0.0.0/8".parse().unwrap())
        .source(source);
    RequestRule::new(
        "per-address",
        "gcra 0.001/s burst=10".parse().unwrap(),
        address,
    )
}

#[test]
fn a_new_leftmost_address_with_every_request_is_one_client() {
    let (engine, _) = engine();
    let layer = layer(&engine, [behind_proxy(AddressSource::XForwardedFor)]);
    let forged = (0..300).map(|i| {
        request(
            "10.0.0.1",
            &[(
                "x-forwarded-for",
                &format!("203.0.113.{}, 192.0.2.7", i % 256),
            )],
        )
    });
    assert_eq!(served(&layer, forged), 10);
    let by_lines = (0..300).map(|i| {
        let forged = format!("198.51.{}.{}", i / 256, i % 256);
        request(
            "10.0.0.1",
            &[
                ("x-forwarded-for", &forged),
                ("x-forwarded-for", "192.0.2.7"),
            ],
        )
    });
    assert_eq!(served(&layer, by_lines), 0, "two lines are one list");
}

#[test]
fn a_new_address_of_its_own_network_with_every_request_is_one_client() {
    let (engine, _) = engine();
    let layer = layer(&engine, [behind_proxy(AddressSource::XForwardedFor)]);
    let hopping = (0..300).map(|i| {
        request(
            "10.0.0.1",
            &[("x-forwarded-for", &format!("2001:db8:0:7::{i:x}"))],
        )
    });
    assert_eq!(served(&layer, hopping), 10);
}

#[test]
fn headers_of_one_who_is_no_proxy_change_nothing() {
    let (engine, _) = engine();
    let layer = layer(&engine, [behind_proxy(AddressSource::XForwardedFor)]);
    let forged = (0..300).map(|i| {
        request(
            "192.0.2.7",
            &[("x-forwarded-for", &format!("203.0.113.{}", i % 256))],
        )
    });
    assert_eq!(served(&layer, forged), 10);
}

/// Values that a client may send before the element that the proxy appends.
fn forged() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "for=",
            "For = ",
            "\"",
            ",",
            ";",
            "[",
            "]",
            "\\",
            "\\\"",
            "_x",
            "unknown",
            "=",
            " ",
            "\t",
            "192.0.2.",
            "6.6.6.6",
            "[::1]:80",
            "proto=http",
            ":99999",
            "for=\"",
            "\",",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(
            (32u8..=255).prop_filter("no DEL", |byte| *byte != 127),
            0..6
        ),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// A thousand forged values in 50 cases: the element of the proxy counts under all of them.
    #[test]
    fn whatever_stands_before_the_proxys_element_changes_nothing(
        values in prop::collection::vec(forged(), 20),
    ) {
        for (source, name, appended) in [
            (AddressSource::Forwarded, "forwarded", "for=192.0.2.7;proto=https"),
            (AddressSource::Forwarded, "forwarded", "for=\"[2001:db8::1]:443\""),
            (AddressSource::XForwardedFor, "x-forwarded-for", "192.0.2.7"),
        ] {
            let (engine, _) = engine();
            let layer = layer(&engine, [behind_proxy(source)]);
            let requests = values.iter().filter_map(|value| {
                let mut line = value.clone();
                line.extend_from_slice(b", ");
                line.extend_from_slice(appended.as_bytes());
                let mut request: Request<()> = request("10.0.0.1", &[]);
                request.headers_mut().insert(name, HeaderValue::from_bytes(&line).ok()?);
                Some(request)
            });
            prop_assert!(served(&layer, requests) <= 10);
        }
    }
}
