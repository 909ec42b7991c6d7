use super::*;

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap()
}

#[test]
fn a_set_contains_exactly_what_it_was_given() {
    let given = [100, 163, 164, 401, 404, 599];
    let codes = Statuses::from(given);
    let mixed = codes.and(Statuses::SUCCESSES).and(status(503));
    for code in 100..=999 {
        assert_eq!(codes.contains(status(code)), given.contains(&code), "{code}");
        let in_set = given.contains(&code) || (200..300).contains(&code) || code == 503;
        assert_eq!(mixed.contains(status(code)), in_set, "{code}");
    }
    assert_eq!(Statuses::NONE.items().count(), 0);
    let items: Vec<String> = mixed.items().map(|item| item.to_string()).collect();
    assert_eq!(items, ["2xx", "100", "163", "164", "401", "404", "503", "599"]);
}

#[test]
fn an_invalid_status_is_remembered_and_contains_nothing() {
    for code in [0, 99, 600, 999, 1_000, u16::MAX] {
        let statuses = Statuses::from([200, code, 12]);
        assert_eq!(statuses.invalid(), Some(code));
        assert_eq!(statuses.items().collect::<Vec<_>>(), [Item::Code(200)]);
        assert!(!statuses.is_empty());
    }
    assert!(Statuses::default().is_empty());
}

#[test]
fn a_class_is_covered_if_all_its_statuses_are_in_the_set() {
    let client = Statuses::CLIENT_ERRORS;
    assert!(client.covers(Item::Class(4)) && client.covers(Item::Code(404)));
    assert!(!client.covers(Item::Class(5)) && !Statuses::from([404]).covers(Item::Class(4)));
    let all = (400..500).fold(Statuses::NONE, Statuses::and);
    assert!(all.covers(Item::Class(4)));
}

#[test]
fn a_rule_keeps_the_charge_of_the_named_statuses() {
    use crate::{
        policy::{CompiledPolicy, Policy, Rule},
        quota::Quota,
    };
    let keeps = |rule: Rule| -> Vec<u16> {
        let policy = Policy::new().rule(rule.tier(Quota::per_second(1)));
        let compiled = CompiledPolicy::new(policy).unwrap();
        let rule = &compiled.rules[0];
        [100, 200, 302, 401, 404, 500, 599, 600].into_iter().filter(|code| rule.keeps(status(*code))).collect()
    };
    let rule = || Rule::new("rule");
    assert_eq!(keeps(rule()), [100, 200, 302, 401, 404, 500, 599, 600]);
    assert_eq!(keeps(rule().charge_on([401, 599])), [401, 599]);
    assert_eq!(keeps(rule().refund_on(Statuses::SERVER_ERRORS.and(404))), [100, 200, 302, 401, 600]);
    assert_eq!(keeps(rule().charge_on(Statuses::CLIENT_ERRORS).refund_on(StatusCode::NOT_FOUND)), [401]);
    assert_eq!(keeps(rule().charge_on([401]).charge_on([500])), [401, 500]);
}
