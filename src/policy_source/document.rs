use std::sync::Arc;

use crate::{backend::Share, error::ConfigError, policy::Policy};

/// What a source holds: a policy, and over how many instances it is split.
///
/// ```
/// use tower_ratelimit::policy_source::Document;
///
/// let document = Document::yaml("rules: [{ id: all, tiers: [{ limit: 10, window: 1s }] }]");
/// assert_eq!(document.clone().instances(96), document.clone().instances(96));
/// assert_ne!(document.clone().instances(80), document);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    content: Content,
    instances: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Yaml(Arc<str>),
    Policy(Box<Policy>),
    Unusable(Arc<str>),
}

impl Document {
    /// A policy in YAML, with or without `instances`.
    #[must_use]
    pub fn yaml(text: impl Into<Arc<str>>) -> Self {
        Self { content: Content::Yaml(text.into()), instances: None }
    }

    /// A policy that is known already.
    #[must_use]
    pub fn policy(policy: impl Into<Policy>) -> Self {
        Self { content: Content::Policy(Box::new(policy.into())), instances: None }
    }

    /// Something that cannot be a policy, such as what is too large: it is
    /// rejected for this reason, as a policy is that cannot hold.
    #[must_use]
    pub fn unusable(why: impl Into<Arc<str>>) -> Self {
        Self { content: Content::Unusable(why.into()), instances: None }
    }

    /// Over how many instances the limits are split; goes before what the YAML
    /// says.
    #[must_use]
    pub fn instances(mut self, count: u64) -> Self {
        self.instances = Some(count);
        self
    }

    /// YAML of at most so many bytes.
    pub(super) fn of_bytes(bytes: Vec<u8>, most: usize) -> Self {
        if bytes.len() > most {
            return Self::too_large(most);
        }
        match String::from_utf8(bytes) {
            Ok(text) => Self::yaml(text),
            Err(error) => Self::unusable(format!("is not UTF-8 at byte {}", error.utf8_error().valid_up_to())),
        }
    }

    pub(super) fn too_large(most: usize) -> Self {
        Self::unusable(format!("has more than {most} bytes"))
    }

    /// The policy, and the number of instances where it is said and can be.
    pub(super) fn read(&self) -> Result<(Policy, Option<u64>), ConfigError> {
        let (policy, said) = match &self.content {
            Content::Yaml(text) => Policy::from_document(text)?,
            Content::Policy(policy) => (Policy::clone(policy), None),
            Content::Unusable(why) => return Err(ConfigError::new("", format!("the policy {why}"))),
        };
        let instances = self.instances.or(said);
        if let Some(count) = instances {
            Share::new(0, count).map_err(|_| {
                let reason = format!("must be from 1 to {}", Share::MAX_COUNT);
                ConfigError::new("instances", reason).with_value(count)
            })?;
        }
        Ok((policy, instances))
    }
}
