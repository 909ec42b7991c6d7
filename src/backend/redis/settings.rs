//! What [`RedisBuilder`](super::RedisBuilder) has gathered.

use std::{fmt, time::Duration};

use redis::ConnectionInfo;

use crate::backend::breaker::BreakerSettings;

/// Where the store is.
#[derive(Clone)]
pub(super) enum Place {
    Alone(ConnectionInfo),
    Cluster(Vec<ConnectionInfo>),
    Sentinel { master: String, sentinels: Vec<ConnectionInfo>, node: Box<redis::RedisConnectionInfo> },
}

/// Addresses only: everything else may be secret.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[ConnectionInfo]| {
            for (at, info) in all.iter().enumerate() {
                write!(f, "{}{}", if at == 0 { "" } else { ", " }, info.addr())?;
            }
            Ok(())
        };
        match self {
            Self::Alone(info) => write!(f, "{}", info.addr()),
            Self::Cluster(nodes) => list(f, nodes),
            Self::Sentinel { master, sentinels, .. } => {
                write!(f, "master `{}` of ", master.escape_debug())?;
                list(f, sentinels)
            }
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// All settings, checked.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) place: Place,
    pub(super) prefix: String,
    pub(super) connections: usize,
    pub(super) connect_timeout: Duration,
    pub(super) deadline: Duration,
    pub(super) breaker: BreakerSettings,
    pub(super) max_batch: usize,
    pub(super) rejection_cache_ttl: Duration,
    pub(super) rejection_cache_size: usize,
    pub(super) lease: Duration,
    pub(super) limiter_time: bool,
    #[cfg(feature = "redis-tls")]
    pub(super) certificates: Option<redis::TlsCertificates>,
}

impl Settings {
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.place, Place::Cluster(_))
    }

    /// A cluster has only 0.
    pub(super) fn database(&self) -> i64 {
        match &self.place {
            Place::Alone(info) => info.redis_settings().db(),
            Place::Sentinel { node, .. } => node.db(),
            Place::Cluster(_) => 0,
        }
    }
}
