//! The contenders. Each has one connection, its own keys, and a limit that is
//! never reached, because an admission costs more than a rejection.

use std::sync::Arc;

use redis::{Script, aio::MultiplexedConnection};
use throttle_kit::{Quota, RateLimitBackend, RedisBackend};

use crate::AnyError;

pub enum Contender {
    /// One script call a decision, without anything else.
    Plain {
        connection: MultiplexedConnection,
        script: Script,
    },
    ThrottleKit {
        backend: RedisBackend,
        quota: Quota,
    },
    #[cfg(feature = "limitador")]
    Limitador(limited::Limitador),
    #[cfg(feature = "ours")]
    Ours(&'static str, tower_ratelimit::RateLimiter),
}

/// Ratios refer to the first contender.
pub async fn all(url: &str) -> Result<Vec<Arc<Contender>>, AnyError> {
    let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let script = Script::new(include_str!("plain.lua"));
    let backend = RedisBackend::connect(url).await.map_err(|error| error.to_string())?;
    // Its shortest refill interval is a millisecond.
    let quota = Quota::per_second(1_000).allow_burst(1_000_000_000);
    let contenders = vec![
        Contender::Plain { connection, script },
        Contender::ThrottleKit { backend, quota },
        #[cfg(feature = "limitador")]
        Contender::Limitador(limited::Limitador::connect(url).await?),
        #[cfg(feature = "ours")]
        ours::exact(url).await?,
    ];
    Ok(contenders.into_iter().map(Arc::new).collect())
}

/// Each level of consistency, beside a limiter that shares nothing. Ratios refer to
/// that.
#[cfg(feature = "ours")]
pub async fn levels(url: &str) -> Result<Vec<Arc<Contender>>, AnyError> {
    use tower_ratelimit::Consistency::Leased;

    let contenders = [
        ours::local()?,
        ours::exact(url).await?,
        ours::of_level("tower-ratelimit, leased", url, Leased).await?,
    ];
    Ok(contenders.into_iter().map(Arc::new).collect())
}

impl Contender {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Plain { .. } => "one EVALSHA a decision",
            Self::ThrottleKit { .. } => "throttle-kit",
            #[cfg(feature = "limitador")]
            Self::Limitador(_) => "limitador",
            #[cfg(feature = "ours")]
            Self::Ours(name, _) => name,
        }
    }

    /// Whether the next request of a key is admitted. `false` if the store failed.
    pub async fn is_admitted(&self, key: &str) -> bool {
        match self {
            Self::Plain { connection, script } => {
                let mut connection = connection.clone();
                let key = format!("plain:{key}");
                let answer = script.key(key).arg(1).arg(1_000_000).invoke_async::<[i64; 3]>(&mut connection).await;
                answer.is_ok_and(|[admitted, ..]| admitted == 1)
            }
            Self::ThrottleKit { backend, quota } => {
                let result = backend.check(&format!("throttle-kit:{key}"), quota).await;
                // If the store fails, it allows the request with nothing remaining.
                result.allowed && result.remaining > 0
            }
            #[cfg(feature = "limitador")]
            Self::Limitador(limiter) => limiter.is_admitted(key).await,
            #[cfg(feature = "ours")]
            Self::Ours(_, limiter) => {
                limiter.check(&tower_ratelimit::Descriptor::new("/").tenant(key)).await.is_allowed()
            }
        }
    }
}

#[cfg(feature = "ours")]
mod ours {
    use std::time::Duration;

    use tower_ratelimit::{Consistency, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis};

    use super::Contender;
    use crate::AnyError;

    fn policy(level: Consistency) -> Policy {
        let rule = Rule::new(level.as_str()).tier(Quota::per_second(1_000_000)).consistency(level);
        Policy::new().rule(rule.on_backend_failure(FailureMode::Closed))
    }

    pub fn local() -> Result<Contender, AnyError> {
        Ok(Contender::Ours("tower-ratelimit, Local", RateLimiter::new(policy(Consistency::Exact))?))
    }

    pub async fn exact(url: &str) -> Result<Contender, AnyError> {
        of_level("tower-ratelimit", url, Consistency::Exact).await
    }

    pub async fn of_level(name: &'static str, url: &str, level: Consistency) -> Result<Contender, AnyError> {
        // The callers leave the server and the connection little of the machine.
        let backend = Redis::builder().url(url).connections(1).deadline(Duration::from_secs(2)).connect().await?;
        Ok(Contender::Ours(name, RateLimiter::builder().policy(policy(level)).backend(backend).build()?))
    }
}

#[cfg(feature = "limitador")]
mod limited {
    use std::collections::HashMap;

    use limitador::{
        AsyncRateLimiter,
        limit::{Context, Expression, Limit, Namespace},
        storage::redis::AsyncRedisStorage,
    };

    use crate::AnyError;

    /// `limitador`, counting fixed windows per tenant. Its variables are owned
    /// strings.
    pub struct Limitador {
        limiter: AsyncRateLimiter,
        namespace: Namespace,
    }

    impl Limitador {
        pub async fn connect(url: &str) -> Result<Self, AnyError> {
            let storage = AsyncRedisStorage::new(url).await?;
            let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
            let tenant = Expression::try_from("tenant").map_err(|error| error.to_string())?;
            limiter.add_limit(Limit::new("bench", u64::from(u32::MAX), 86_400, [], [tenant]));
            Ok(Self { limiter, namespace: Namespace::from("bench") })
        }

        pub async fn is_admitted(&self, key: &str) -> bool {
            let context = Context::from(HashMap::from([("tenant".to_owned(), key.to_owned())]));
            let result = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1).await;
            result.is_ok_and(|result| !result.limited)
        }
    }
}
