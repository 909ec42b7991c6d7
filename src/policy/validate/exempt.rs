//! Checks of a rule that exempts requests: it has a match, and nothing else.

use crate::{
    error::{ConfigError, ensure},
    policy::rule::Rule,
};

/// Every other setting would have no effect, which its author would not expect.
pub(super) fn check_rule(rule: &Rule) -> Result<(), ConfigError> {
    let plain = Rule::new("").exempt(true);
    let (own, none) = (&rule.options, &plain.options);
    let settings = [
        ("tiers", rule.tiers.is_empty()),
        ("adapt", rule.adapt.is_none()),
        ("per", rule.per.is_none()),
        ("tenant", rule.tenant_param.is_none()),
        ("max_wait", rule.max_wait.is_none()),
        ("plans", rule.plans.is_empty()),
        ("tenants", rule.tenants.is_empty()),
        ("local_share", rule.local_share.is_none()),
        ("fallback", !own.fallback),
        ("shadow", !own.shadow),
    ];
    let reason = "has no meaning in a rule that is `exempt`: it charges nothing";
    for (key, is_unset) in settings {
        ensure(is_unset, key, "exempt", reason)?;
    }
    ensure(own == none, "exempt", true, "takes no other setting than a match")
}
