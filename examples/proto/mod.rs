//! The service of the gRPC examples and tests, as `generate` has written it.
//! So they build wherever Rust does, without `protoc`.
#![allow(dead_code, unreachable_pub, clippy::all, reason = "written by a program")]

include!("shop.v1.rs");

/// For reflection.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!("shop.v1.bin");
