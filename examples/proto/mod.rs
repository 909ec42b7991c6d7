//! The service of the gRPC examples and tests. `generate` wrote this code, so
//! that they build without `protoc`.
#![allow(dead_code, unreachable_pub, clippy::all, reason = "generated code")]

include!("shop.v1.rs");

/// The file descriptors, for reflection.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!("shop.v1.bin");
