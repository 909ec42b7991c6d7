//! What an operator asks for: [`Asked`], a request to explain or to reset, and [`Action`].
//!
//! It checks no access. Invariant: an action that fails has changed nothing.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Display,
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Deserializer, de::Error};

use super::report::plain;
use crate::{
    descriptor::{Descriptor, Tenant, TenantRef},
    http::tenant::named_or_address,
    limiter::RateLimiter,
    quota::Quota,
};

/// A request, as an operator describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Asked {
    method: String,
    pub(super) path: String,
    tenant: String,
    plan: String,
    keys: BTreeMap<String, String>,
    #[serde(deserialize_with = "headers")]
    headers: HeaderMap,
}

impl Asked {
    /// As the form of the page asks; empty fields are not set.
    pub(super) fn in_query(query: &str) -> Self {
        let mut asked = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8_lossy().into_owned();
            match name {
                "method" => asked.method = value,
                "path" => asked.path = value,
                "tenant" => asked.tenant = value,
                "plan" => asked.plan = value,
                "key" => asked.keys.extend(value.split_once('=').map(|(key, value)| (key.into(), value.into()))),
                "header" => asked.headers.extend(header(&value)),
                _ => {}
            }
        }
        asked
    }

    pub(super) fn descriptor(&self) -> Descriptor<'_> {
        let method = if self.method.is_empty() { "GET" } else { &self.method };
        let mut descriptor = Descriptor::new(&*self.path).method(method).headers(&self.headers);
        if !self.tenant.is_empty() {
            descriptor = descriptor.tenant(named_or_address(&self.tenant));
        }
        if !self.plan.is_empty() {
            descriptor = descriptor.plan(&self.plan);
        }
        self.keys.iter().fold(descriptor, |descriptor, (name, value)| descriptor.key(name, named_or_address(value)))
    }
}

/// A header such as `mcp-method: tools/call`.
fn header(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(':')?;
    Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
}

fn headers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderMap, D::Error> {
    let headers = HashMap::<String, String>::deserialize(deserializer)?;
    HeaderMap::try_from(&headers).map_err(|error| D::Error::custom(format_args!("headers: {error}")))
}

#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Action {
    Reset {
        #[serde(default)]
        request: Asked,
    },
    Override {
        tenant: String,
        /// Without it, all rules that count by tenant.
        #[serde(default)]
        rule: String,
        tiers: Vec<Quota>,
        #[serde(deserialize_with = "duration")]
        ttl: Duration,
    },
    Block {
        tenant: String,
        #[serde(deserialize_with = "duration")]
        ttl: Duration,
    },
    Lift {
        tenant: String,
    },
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(|error| D::Error::custom(format_args!("ttl: {error}, such as `15m`")))
}

impl Action {
    /// What was done, or why nothing was.
    pub(super) async fn run(self, limiter: &RateLimiter) -> Result<String, String> {
        let text = |error: &dyn Display| plain(&error.to_string());
        match self {
            Self::Reset { request } => {
                let forgotten = limiter.reset(&request.descriptor()).await.map_err(|error| text(&error))?;
                Ok(format!("{forgotten} counters were reset"))
            }
            Self::Override { tenant, rule, tiers, ttl } => {
                let tenant: Tenant = named(&tenant)?.into_owned();
                let tenant = if rule.is_empty() { tenant.tiers(tiers) } else { tenant.tiers_for(rule, tiers) };
                limiter.override_tiers(tenant, ttl).map_err(|error| text(&error))?;
                Ok("the tenant has other tiers".into())
            }
            Self::Block { tenant, ttl } => {
                limiter.block(named(&tenant)?.into_owned(), ttl).map_err(|error| text(&error))?;
                Ok("the tenant is blocked".into())
            }
            Self::Lift { tenant } => match limiter.lift_overrides(named(&tenant)?.id()) {
                true => Ok("the tenant's overrides were lifted".into()),
                false => Err("the tenant has no overrides".into()),
            },
        }
    }
}

fn named(tenant: &str) -> Result<TenantRef<'_>, String> {
    if tenant.is_empty() { Err("tenant: is empty".into()) } else { Ok(named_or_address(tenant)) }
}
