use super::*;

#[test]
fn an_id_is_displayed_unescaped() {
    assert_eq!(Tenant::new("acme").id().to_string(), "acme");
    assert_eq!(Tenant::address([192, 0, 2, 7].into()).id().to_string(), "192.0.2.7");
}
