use std::time::Duration;

use super::*;
use crate::{decision::Decision, quota::Quota};

#[test]
fn a_waiter_takes_little_memory() {
    let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
    let waits = || {
        let mut decision = Decision::unlimited();
        let admission = limiter.claim(&Descriptor::new("/"), Duration::MAX, &mut decision);
        admission.unwrap().drive(decision)
    };
    drop(waits());
    let size = size_of_val(&*waits());
    assert!(size <= 640, "{size} bytes");
}

#[test]
fn print_sizes() {
    use super::{admission::Admission, owned_attempt::OwnedAttempt, reservation::Reservation, step::Step, wait::capacity::WaiterGrant};
    let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
    let waits = || {
        let mut decision = Decision::unlimited();
        let admission = limiter.claim(&Descriptor::new("/"), Duration::MAX, &mut decision);
        admission.unwrap().drive(decision)
    };
    drop(waits());
    eprintln!("driving {} admission {} attempt {} reservation {} step {} waiter {} lease {} receipt {} sleep {} timeout {}", size_of_val(&*waits()), size_of::<Admission>(), size_of::<OwnedAttempt>(), size_of::<Reservation>(), size_of::<Step>(), size_of::<WaiterGrant>(), size_of::<Lease>(), size_of::<crate::backend::Receipt>(), size_of::<tokio::time::Sleep>(), size_of::<crate::backend::OwnedCharge>());
}
