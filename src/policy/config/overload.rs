//! How overload stands in a policy file: `{ cpu: 85%, scheduling_delay: 20ms }`.
//!
//! Signals of a program's own cannot stand in a file, and are not written to one.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::{
    overload::{self, Overload},
    policy::forms::{self, Part, is_default},
};

#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "overload", extend("anyOf" = [{ "required": ["cpu"] }, { "required": ["scheduling_delay"] }]))]
pub(super) struct Signals {
    #[serde(default, skip_serializing_if = "is_default")]
    cpu: Option<Part>,
    #[serde(default, skip_serializing_if = "is_default", with = "forms::duration")]
    #[schemars(with = "String", regex(pattern = forms::DURATION))]
    scheduling_delay: Option<Duration>,
}

impl From<Signals> for Overload {
    fn from(Signals { cpu, scheduling_delay }: Signals) -> Self {
        let mut overload = Self::new();
        if let Some(Part(threshold)) = cpu {
            overload = overload.signal(overload::cpu(), threshold);
        }
        if let Some(threshold) = scheduling_delay {
            overload = overload.signal(overload::scheduling_delay(), threshold.as_secs_f64());
        }
        overload
    }
}

impl Serialize for Overload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let threshold = |name| self.thresholds().find(|(own, _)| *own == name).map(|(_, threshold)| threshold);
        let cpu = threshold(overload::CPU).map(Part);
        let delay = threshold(overload::SCHEDULING_DELAY);
        let scheduling_delay = delay.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Signals { cpu, scheduling_delay }.serialize(serializer)
    }
}
