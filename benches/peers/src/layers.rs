//! The peers' layers, each configured as its documentation shows for this task.

use std::{net::SocketAddr, num::NonZeroU32, sync::Arc, time::Duration};

use axum::extract::ConnectInfo;
use http::Request;
use tower::Layer;
use tower_governor::{GovernorError, governor::GovernorConfigBuilder, key_extractor};

use crate::{
    contenders::{API_KEY, Limit, NoOp, Per, contestant},
    decision::{PLENTY, REFILL, rate_net_limiter, throttle_kit_quota},
    keys::Caller,
    race::Contestant,
};

const HOUR: Duration = Duration::from_secs(3600);

/// `tower_governor` has no extractor for a header; its documentation shows how to
/// write one.
#[derive(Clone)]
pub struct ByApiKey;

impl key_extractor::KeyExtractor for ByApiKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let value = request.headers().get(&API_KEY).and_then(|value| value.to_str().ok());
        value.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}

macro_rules! tower_governor {
    ($function:ident, $($headers:ident)?) => {
        pub fn $function(name: &'static str, per: Per, limit: Limit) -> Contestant<Caller> {
            let (period, burst) = match limit {
                Limit::Plenty => (REFILL, PLENTY),
                Limit::Exhausted => (HOUR, 1),
            };
            let mut builder = GovernorConfigBuilder::default();
            builder.period(period).burst_size(burst);
            match per {
                Per::Peer => {
                    let config = builder$(.$headers())?.finish().expect("a valid configuration");
                    let layer = tower_governor::GovernorLayer::new(config);
                    contestant(name, layer.layer(NoOp), limit)
                }
                Per::ApiKey => {
                    let mut builder = builder.key_extractor(ByApiKey);
                    let config = builder$(.$headers())?.finish().expect("a valid configuration");
                    let layer = tower_governor::GovernorLayer::new(config);
                    contestant(name, layer.layer(NoOp), limit)
                }
            }
        }
    };
}

// Two functions, because a type parameter of builder, layer and service differs.
tower_governor!(tower_governor,);
tower_governor!(tower_governor_headers, use_headers);

pub fn axum_governor_quota() -> axum_governor::Quota {
    let refill = NonZeroU32::new(REFILL.as_secs() as u32).expect("a refill takes time");
    let plenty = NonZeroU32::new(PLENTY).expect("plenty is not zero");
    axum_governor::Quota::seconds_per_request(refill).burst(plenty)
}

pub fn axum_governor(name: &'static str, per: Per, limit: Limit) -> Contestant<Caller> {
    use axum_governor::{GovernorConfigBuilder, GovernorLayer, Quota, extractor, nz};

    let quota = match limit {
        Limit::Plenty => axum_governor_quota(),
        Limit::Exhausted => Quota::requests_per_hour(nz!(1u32)),
    };
    let builder = GovernorConfigBuilder::default();
    match per {
        Per::Peer => {
            let builder = builder.with_extractor(extractor::PeerIp::default());
            let config = builder.expect_connect_info().quota_default(quota).finish();
            let layer = GovernorLayer::new(config.expect("a valid configuration"));
            contestant(name, layer.layer(NoOp), limit)
        }
        Per::ApiKey => {
            let builder = builder.with_extractor(extractor::Header(&API_KEY));
            let config = builder.quota_default(quota).finish();
            let layer = GovernorLayer::new(config.expect("a valid configuration"));
            contestant(name, layer.layer(NoOp), limit)
        }
    }
}

pub fn rate_net(name: &'static str, per: Per, limit: Limit, headers: bool) -> Contestant<Caller> {
    use rate_net::{
        Key, Quota, RateLimiter,
        tower::{HeaderKey, RateLimitLayer, RequestInfo},
    };

    let limiter = match limit {
        Limit::Plenty => rate_net_limiter(),
        Limit::Exhausted => RateLimiter::with_quota(Quota::rate(1, HOUR).expect("a valid quota")),
    };
    match per {
        Per::Peer => {
            let peer = |request: &RequestInfo<'_>| {
                let peer = request.extensions().get::<ConnectInfo<SocketAddr>>()?;
                Some(Key::ip_prefix(peer.0.ip(), 32, 64))
            };
            let layer = RateLimitLayer::new(limiter, peer).with_headers_on_success(headers);
            contestant(name, layer.layer(NoOp), limit)
        }
        Per::ApiKey => {
            let layer = RateLimitLayer::new(limiter, HeaderKey::new(API_KEY.clone()));
            let layer = layer.with_headers_on_success(headers);
            contestant(name, layer.layer(NoOp), limit)
        }
    }
}

pub fn throttle_kit(name: &'static str, per: Per, limit: Limit) -> Contestant<Caller> {
    use throttle_kit::{InMemoryBackend, Quota, RateLimitLayer};

    let quota = match limit {
        Limit::Plenty => throttle_kit_quota(),
        Limit::Exhausted => Quota::per_hour(1),
    };
    let layer = RateLimitLayer::new(quota, InMemoryBackend::new());
    let layer = match per {
        Per::Peer => layer,
        Per::ApiKey => layer.with_key_extractor(Arc::new(|headers, _| {
            let value = headers.get(&API_KEY).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        })),
    };
    contestant(name, layer.layer(NoOp), limit)
}

#[cfg(feature = "tower-rate-limiter")]
impl tower_rate_limiter::KeyExtractor for ByApiKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, tower_rate_limiter::RateLimitError> {
        use tower_rate_limiter::RateLimitError;

        let value = request.headers().get(&API_KEY).and_then(|value| value.to_str().ok());
        let missing = || RateLimitError::Key("missing".to_owned(), "x-api-key".to_owned());
        value.map(str::to_owned).ok_or_else(missing)
    }
}

#[cfg(feature = "tower-rate-limiter")]
pub fn tower_rate_limiter(name: &'static str, per: Per, limit: Limit) -> Contestant<Caller> {
    use tower_rate_limiter::{IpKeyExtractor, MemoryStore, RateLimitLayer};

    let limit_value = match limit {
        Limit::Plenty => u64::from(PLENTY),
        Limit::Exhausted => 1,
    };
    match per {
        Per::Peer => {
            let builder = RateLimitLayer::builder(IpKeyExtractor::new()).limit(limit_value);
            let layer = builder.window(HOUR).with_store(MemoryStore::new()).build();
            contestant(name, layer.expect("a valid policy").layer(NoOp), limit)
        }
        Per::ApiKey => {
            let builder = RateLimitLayer::builder(ByApiKey).limit(limit_value);
            let layer = builder.window(HOUR).with_store(MemoryStore::new()).build();
            contestant(name, layer.expect("a valid policy").layer(NoOp), limit)
        }
    }
}
