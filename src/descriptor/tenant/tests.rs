use std::collections::HashSet;

use super::*;

#[test]
fn an_id_is_displayed_unescaped() {
    assert_eq!(Tenant::new("acme").id().to_string(), "acme");
    assert_eq!(Tenant::address([192, 0, 2, 7].into()).id().to_string(), "192.0.2.7");
}

#[test]
fn what_says_the_same_is_equal() {
    let tenant = Tenant::new("acme").plan("pro");
    let same = [
        tenant.as_ref(),
        TenantRef::from(tenant.clone()),
        TenantRef::name("acme").plan("pro"),
        TenantRef::name(String::from("acme")).plan(String::from("pro")),
        TenantRef::name("acme").plan("free").plan(String::from("pro")),
        Tenant::new("acme").plan("free").as_ref().plan("pro").into_owned().into(),
    ];
    assert_eq!(same.iter().collect::<HashSet<_>>().len(), 1, "{same:?}");
    assert!(same.into_iter().all(|same| same.into_owned() == tenant));

    let other = [
        TenantRef::name("acme"),
        TenantRef::name("acme").plan("free"),
        TenantRef::name("initech").plan("pro"),
        TenantRef::address([1, 2, 3, 4].into()).plan("pro"),
        tenant.as_ref().tiers([Quota::per_second(1)]),
    ];
    assert!(other.iter().all(|other| *other != tenant.as_ref()));
}

#[test]
fn what_is_added_keeps_the_rest() {
    let quotas = || [Quota::per_second(7)];
    let tenant = Tenant::new("acme").plan("pro").tiers_for("jobs", quotas());
    let added = tenant.as_ref().tiers(quotas()).plan(String::from("free"));
    assert_eq!(added.clone().into_owned(), tenant.clone().tiers(quotas()).plan("free"));
    assert_eq!(added.plan("pro").into_owned(), tenant.clone().tiers(quotas()));
    let limits =
        |tenant: &TenantRef<'_>| tenant.limits().and_then(|limits| limits.tiers_for("jobs", true)).map(<[_]>::len);
    let everywhere =
        |tenant: &TenantRef<'_>| tenant.limits().and_then(|limits| limits.tiers_for("any", true)).map(<[_]>::len);
    assert_eq!((everywhere(&tenant.as_ref().tiers(quotas())), everywhere(&tenant.as_ref())), (Some(1), None));

    let address = Tenant::address([1, 2, 3, 4].into());
    let added = address.as_ref().tiers_for("jobs", quotas());
    assert_eq!(limits(&added), Some(1));
    assert_eq!(added.into_owned(), address.tiers_for("jobs", quotas()));
}
