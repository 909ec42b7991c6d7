//! The keys that a request is counted by beside its tenant: [`Keys`].

use super::{tenant::TenantId, tenant_ref::TenantRef};

/// Named keys of a request, such as the caller's address beside its API key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys<'a> {
    /// `None` where the request names more than one key of that name.
    named: Vec<(&'a str, Option<TenantRef<'a>>)>,
}

/// What a request says about one of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    Found(TenantId<'a>),
    Missing,
    /// The request names more than one.
    Ambiguous,
}

impl<'a> Keys<'a> {
    pub(crate) fn insert(&mut self, name: &'a str, key: Option<TenantRef<'a>>) {
        self.named.retain(|(own, _)| *own != name);
        self.named.push((name, key));
    }

    pub(crate) fn get(&self, name: &str) -> Key<'_> {
        match self.named.iter().find(|(own, _)| *own == name) {
            Some((_, Some(key))) => Key::Found(key.id()),
            Some((_, None)) => Key::Ambiguous,
            None => Key::Missing,
        }
    }
}
