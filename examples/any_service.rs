//! Rate limits a service over any request type: a mailer with a limit for each
//! customer and channel. One channel delays messages, the other rejects them.
//!
//! `cargo run --example any_service`

use std::{convert::Infallible, time::Duration};

use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{Descriptor, Policy, Quota, RateLimitLayer, RateLimited, RateLimiter, Rule};

struct Message {
    customer: &'static str,
    channel: &'static str,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let policy = Policy::new()
        .rule(Rule::new("sms").path("/sms").tier(Quota::per_second(10).burst(2)).max_wait(Duration::from_millis(150)))
        .rule(Rule::new("mail").path("/mail").tier(Quota::per_minute(60).burst(3)));
    let layer = RateLimitLayer::keyed(RateLimiter::new(policy)?, |message: &Message| {
        Descriptor::new(message.channel).tenant(message.customer)
    });

    let mut mailer = ServiceBuilder::new().layer(layer).service(service_fn(|message: Message| async move {
        Ok::<_, Infallible>(format!("sent to {}", message.customer))
    }));

    for channel in ["/mail", "/sms"] {
        for attempt in 1..=4 {
            let message = Message { customer: "acme", channel };
            match mailer.ready().await?.call(message).await {
                Ok(sent) => println!("{channel} {attempt}: {sent}"),
                Err(error) => match error.downcast_ref::<RateLimited>() {
                    Some(rejection) => println!("{channel} {attempt}: rejected, {:?}", rejection.kind()),
                    None => return Err(error),
                },
            }
        }
    }
    Ok(())
}
