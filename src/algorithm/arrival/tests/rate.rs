use super::super::*;

#[test]
fn three_a_second_is_three() {
    let rate = Rate::new((3, 1_000_000_000));
    assert_eq!(rate.split(rate.time_for(3)), (1_000_000_000, 0));
    let third = rate.time_for(1);
    assert_eq!(rate.split(third), (333_333_333, 1));
    assert_eq!(rate.nanos(third), 333_333_334);
    assert_eq!(rate.units_in(third), 1);
    assert_eq!(rate.units_in(third + 1), 2);
}
