#[cfg(feature = "test-util")]
mod sampler;
mod sketch;
#[cfg(feature = "test-util")]
mod tenants;
