//! Arrays of integers as the scripts read and write them: MessagePack. It does
//! not know what the integers mean.
//!
//! Invariant: a reply that ends early or holds something else is an error, not
//! a number.

use crate::error::BackendError;

/// Writes an array of integers.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(length: usize) -> Self {
        let mut bytes = Vec::with_capacity(5 + 4 * length);
        // Writing to memory does not fail.
        let _ = rmp::encode::write_array_len(&mut bytes, u32::try_from(length).unwrap_or(u32::MAX));
        Self(bytes)
    }

    pub(crate) fn put(&mut self, number: u64) {
        let _ = rmp::encode::write_uint(&mut self.0, number);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads an array of integers.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(mut bytes: &'a [u8]) -> Result<Self, BackendError> {
        rmp::decode::read_array_len(&mut bytes).map_err(|_| malformed_reply())?;
        Ok(Self(bytes))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, BackendError> {
        rmp::decode::read_int(&mut self.0).map_err(|_| malformed_reply())
    }

    pub(crate) fn unsigned(&mut self) -> Result<u64, BackendError> {
        rmp::decode::read_int(&mut self.0).map_err(|_| malformed_reply())
    }
}

pub(crate) fn malformed_reply() -> BackendError {
    BackendError::unavailable("the store's reply is malformed")
}
