//! What the limiter knows of a request: its [`Descriptor`], and the [`Tenant`]
//! that it is counted for.
//!
//! It reads nothing of a request but its path and route: `http` and other adapters create
//! descriptors. The invariant: a descriptor borrows everything, so describing a request
//! allocates nothing.

#[allow(clippy::module_inception, reason = "the file of the type that the module is named for")]
mod descriptor;
pub(crate) mod grpc;
mod priority;
mod target;
mod tenant;

pub use self::{
    descriptor::{Deadline, Descriptor, MissingTenant},
    priority::Priority,
    tenant::{Tenant, TenantId, TenantRef},
};
pub(crate) use self::{
    descriptor::{Key, StatedCost},
    target::HttpTarget,
    tenant::TenantLimits,
};
