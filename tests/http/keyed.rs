//! Requests of any type.

use std::convert::Infallible;

use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{Descriptor, Policy, Quota, RateLimitLayer, RateLimited, RateLimitedKind, Rule};

use super::common::limiter;

struct Job {
    queue: String,
    owner: String,
    size: u64,
}

fn job(queue: &str, owner: &str, size: u64) -> Job {
    Job { queue: queue.into(), owner: owner.into(), size }
}

#[tokio::test]
async fn a_plain_struct_is_described_by_a_function() {
    let policy = Policy::new()
        .rule(Rule::new("print").path("/print").tier(Quota::per_minute(10)))
        .rule(Rule::new("mail").path("/mail").tier(Quota::per_minute(1)));
    let (limiter, _) = limiter(policy);
    let layer = RateLimitLayer::keyed(limiter, |job: &Job| {
        Descriptor::new(&job.queue).tenant(job.owner.as_str()).cost(job.size)
    });
    let printer = layer.layer(service_fn(|job: Job| async move { Ok::<_, Infallible>(job.size) }));

    for (job, outcome) in [
        (job("/print", "ann", 7), Ok(7)),
        (job("/print", "ann", 4), Err(RateLimitedKind::QuotaExceeded)),
        (job("/print", "ann", 3), Ok(3)),
        (job("/print", "bob", 11), Err(RateLimitedKind::NeverFits)),
        (job("/print", "bob", 10), Ok(10)),
        (job("/mail", "ann", 1), Ok(1)),
        (job("/mail", "ann", 1), Err(RateLimitedKind::QuotaExceeded)),
        (job("/elsewhere", "ann", 1_000), Ok(1_000)),
    ] {
        let label = format!("{} {} {}", job.queue, job.owner, job.size);
        let result = printer.clone().oneshot(job).await;
        let result = result.map_err(|error| error.downcast_ref::<RateLimited>().unwrap().kind());
        assert_eq!(result, outcome, "{label}");
    }
}

#[tokio::test]
async fn a_descriptor_need_not_borrow_from_its_request() {
    let (limiter, _) = limiter(Quota::per_minute(1));
    let layer = RateLimitLayer::keyed(limiter, |number: &u32| {
        Descriptor::new("/").tenant(if number.is_multiple_of(2) { "even" } else { "odd" })
    });
    let service = layer.layer(service_fn(|number: u32| async move { Ok::<_, Infallible>(number) }));
    for (number, admitted) in [(1, true), (2, true), (3, false), (4, false)] {
        assert_eq!(service.clone().oneshot(number).await.is_ok(), admitted, "{number}");
    }
}
