mod gradient;
#[cfg(feature = "test-util")]
mod keys;
