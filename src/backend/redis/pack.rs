//! Arrays of numbers as the scripts read and write them: MessagePack.

use crate::error::BackendError;

use super::batch::cut_short;

/// Writes an array of numbers.
#[derive(Debug)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new(numbers: usize) -> Self {
        let mut bytes = Vec::with_capacity(5 + 4 * numbers);
        // Writing to memory does not fail.
        let _ = rmp::encode::write_array_len(&mut bytes, u32::try_from(numbers).unwrap_or(u32::MAX));
        Self(bytes)
    }

    pub(super) fn put(&mut self, number: u64) {
        let _ = rmp::encode::write_uint(&mut self.0, number);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads an array of numbers.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(mut bytes: &'a [u8]) -> Result<Self, BackendError> {
        rmp::decode::read_array_len(&mut bytes).map_err(|_| cut_short())?;
        Ok(Self(bytes))
    }

    pub(super) fn signed(&mut self) -> Result<i64, BackendError> {
        rmp::decode::read_int(&mut self.0).map_err(|_| cut_short())
    }

    pub(super) fn unsigned(&mut self) -> Result<u64, BackendError> {
        rmp::decode::read_int(&mut self.0).map_err(|_| cut_short())
    }
}
