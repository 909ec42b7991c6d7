//! Hot reload from etcd: a limiter follows a key, by a `PolicySource` of its own.
//!
//! `cargo run --example etcd_source --features watch [-- SERVERS KEY]`
//!
//! It prints which policy is in force after
//! `etcdctl put limits/policy 'rules: [{ id: all, tiers: [{ limit: 5, window: 1m }] }]'`.

mod source;

use std::{env, error::Error, time::Duration};

use tower_ratelimit::{Quota, RateLimiter, policy_source::PolicySource};

use self::source::EtcdSource;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let servers = arguments.next().unwrap_or_else(|| "http://127.0.0.1:2379".into());
    let key = arguments.next().unwrap_or_else(|| "limits/policy".into());
    let source = EtcdSource::new(servers.split(','), &key)?.poll_interval(Duration::from_secs(2));
    println!("watching {}", source.name());

    // In force until the key has a policy.
    let limiter = RateLimiter::new(Quota::per_second(10))?;
    let mut watching = limiter.watch(source)?;
    let (mut applied, mut reason) = (0, None);
    // `None` once the watch has stopped.
    while let Some(status) = watching.wait_for(|now| (now.applied, &now.error) != (applied, &reason)).await {
        match &status.error {
            Some(error) => println!("the last good policy stays in force: {error}"),
            None => println!("policy in force: {} rules", limiter.policy().rules().len()),
        }
        (applied, reason) = (status.applied, status.error);
    }
    Ok(())
}
