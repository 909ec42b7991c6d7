use super::*;

#[test]
fn a_step_is_found_wherever_it_was_last() {
    let steps = LimitSteps::new(&Rule::new("server").tier(Quota::adaptive_concurrency(20..=200))).unwrap();
    let count = steps.count();
    for limit in [0, 19, 20, 21, 66, 67, 150, 199, 200, 201, u64::MAX] {
        let expected = steps.quotas().filter(|quota| quota.limit() <= limit).count().saturating_sub(1);
        for last in (0..=count).chain([usize::MAX]) {
            assert_eq!(steps.step(limit, last), expected, "{limit}, last {last}");
        }
    }
}
