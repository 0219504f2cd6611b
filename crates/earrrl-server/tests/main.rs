//! The tests of the server and of the command line, in one binary.

mod authz;
mod chaos;
mod clients;
mod command;
mod conformance;
mod docs;
mod envoy_config;
mod envoy_live;
mod envoy_proxy;
mod envoy_service;
mod envoy_trouble;
mod foresight;
mod formats;
mod listeners;
mod near;
mod openapi;
mod process;
mod proxies;
mod redis;
mod replay;
mod replay_config;
mod robustness;
mod soak;
mod support;
mod tls;
mod wire;
