//! The messages of Envoy's services: any bytes are decoded or refused, and what is decoded is encoded alike. The
//! first byte chooses the message.
#![no_main]

use earrrl_server::config::envoy::tree::Tree;
use earrrl_server::config::envoy::load::domain;
use earrrl_server::protobuf::authorization::CheckRequest;
use earrrl_server::protobuf::discovery::{DiscoveryResponse, RateLimitConfig};
use earrrl_server::protobuf::ratelimit::RateLimitRequest;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fn decode<M: Message + Default + PartialEq>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let encoded = message.encode_to_vec();
    let again = M::decode(&*encoded).expect("what was encoded is valid");
    // A value that is not a number differs from itself, so encodings are compared. A map is encoded in any order,
    // so their bytes are compared without their order.
    assert_eq!(sorted(again.encode_to_vec()), sorted(encoded));
    Some(message)
}

fn sorted(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.sort_unstable();
    bytes
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => drop(decode::<RateLimitRequest>(bytes)),
        1 => drop(decode::<CheckRequest>(bytes)),
        2 => drop(decode::<DiscoveryResponse>(bytes)),
        _ => {
            let config = decode::<RateLimitConfig>(bytes);
            let config = config.and_then(|config| domain(&config).ok());
            drop(config.map(|config| Tree::new(&[config], false)));
        }
    }
});
