use std::time::Duration;

use super::*;
use crate::{decision::Decision, quota::Quota};

#[test]
fn a_waiter_takes_little_memory() {
    let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
    assert!(limiter.try_check(&Descriptor::new("/")).unwrap().is_allowed());
    let waits = || {
        let mut decision = Decision::unlimited();
        let mut decided = Decided::new(&mut decision);
        let next = limiter.decide_for(Purpose::Acquire, &Descriptor::new("/"), Duration::MAX, &mut decided);
        let Next::Wait(admission) = next else { panic!("it has to wait") };
        admission.drive(decision)
    };
    drop(waits());
    let size = size_of_val(&*waits());
    assert!(size <= 640, "{size} bytes");
}
