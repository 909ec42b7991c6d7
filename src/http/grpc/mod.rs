//! The gRPC side: what a gRPC or gRPC-Web client sees of a rejection.

mod details;
mod response;
#[cfg(feature = "tonic")]
mod status;

pub(crate) use self::response::{rejection, trailers};

#[cfg(test)]
mod tests;
