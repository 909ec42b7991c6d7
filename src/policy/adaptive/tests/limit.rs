use super::*;

#[test]
fn the_highest_step_within_the_limit_is_found() {
    let steps = LimitSteps::new(&[Quota::adaptive_concurrency(20..=200)]).unwrap();
    for limit in [0, 19, 20, 21, 66, 67, 150, 199, 200, 201, u64::MAX] {
        let expected = steps.quotas().filter(|quota| quota.limit() <= limit).count().saturating_sub(1);
        assert_eq!(steps.step(limit), expected, "{limit}");
    }
}
