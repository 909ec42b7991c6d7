//! A source's content: [`Document`].
//!
//! A document may be invalid. It is parsed when the watch task applies it, never
//! by the source.

use std::sync::Arc;

use crate::{
    error::ConfigError,
    policy::{Policy, check_instances},
};

/// The default of every source's `max_bytes`.
pub(super) const DEFAULT_MAX_BYTES: usize = 1 << 20;

/// What a source holds: a policy, and optionally the number of instances that
/// share its limits.
///
/// ```
/// use tower_ratelimit::policy_source::Document;
///
/// let document = Document::yaml("rules: [{ id: all, tiers: [{ limit: 10, window: 1s }] }]");
/// assert_eq!(document.clone().instances(96), document.clone().instances(96));
/// assert_ne!(document.clone().instances(80), document);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Document {
    content: Content,
    instances: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Yaml(Arc<str>),
    Policy(Box<Policy>),
    Invalid(Arc<str>),
}

impl Document {
    /// A policy in YAML, with or without the key `instances`.
    pub fn yaml(text: impl Into<Arc<str>>) -> Self {
        Self { content: Content::Yaml(text.into()), instances: None }
    }

    /// A policy that the source has built itself.
    pub fn policy(policy: impl Into<Policy>) -> Self {
        Self { content: Content::Policy(Box::new(policy.into())), instances: None }
    }

    /// Content that cannot be a policy, such as one that is too large. It is
    /// rejected for this reason, as an invalid policy is.
    pub fn invalid(reason: impl Into<Arc<str>>) -> Self {
        Self { content: Content::Invalid(reason.into()), instances: None }
    }

    /// The number of instances that share the limits. Overrides the policy's own.
    pub fn instances(mut self, count: u64) -> Self {
        self.instances = Some(count);
        self
    }

    /// YAML of at most `max_bytes` bytes.
    pub(super) fn from_bytes(bytes: &[u8], max_bytes: usize) -> Self {
        match str::from_utf8(bytes) {
            _ if bytes.len() > max_bytes => Self::too_large(max_bytes),
            Ok(text) => Self::yaml(text),
            Err(error) => Self::invalid(format!("is not UTF-8 at byte {}", error.valid_up_to())),
        }
    }

    pub(super) fn too_large(max_bytes: usize) -> Self {
        Self::invalid(format!("has more than {max_bytes} bytes"))
    }

    /// The policy, and the number of instances if the document has one.
    pub(super) fn parse(&self) -> Result<(Policy, Option<u64>), ConfigError> {
        let policy = match &self.content {
            Content::Yaml(text) => Policy::from_yaml(text)?,
            Content::Policy(policy) => Policy::clone(policy),
            Content::Invalid(reason) => return Err(ConfigError::new("", format!("the policy {reason}"))),
        };
        let instances = self.instances.or(policy.instances);
        instances.map_or(Ok(()), check_instances)?;
        Ok((policy, instances))
    }
}
