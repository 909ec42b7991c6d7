//! Opens connections: to one server, to the primary that sentinels name, or to a node of a
//! cluster. It does not decide when: `link` does.
//!
//! Invariant: the driver resends nothing, so its retries and reconnects are not used.

use std::{future::Future, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, PushInfo, RedisError, RedisResult,
    TlsMode,
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};
use tokio::{
    sync::broadcast,
    time::{Instant, timeout},
};

use super::{
    dataset::run_id,
    failure::Failure,
    server::{Connection, Connections, Server},
};
use crate::backend::redis::{
    settings::{Deployment, Servers, Settings},
    wire::{Call, DECIDE},
};

/// Connects to a server, loads the scripts, and runs one: it may not run any. Its connections
/// pass on what the server pushes.
pub(super) async fn open(
    settings: &Settings,
    server: &Server,
    pushes: &broadcast::Sender<PushInfo>,
) -> Result<Connections, Failure> {
    // Each sentinel may take as long as a server.
    let Servers { deployment, named, .. } = &settings.servers;
    let others = if let Deployment::Sentinel(_) = deployment { named.len() } else { 1 };
    within(settings.connect_timeout.saturating_mul(others as u32 + 1), async {
        #[cfg(feature = "tls")]
        provide_cryptography();
        let client = match &server.info {
            Some(info) => Client::open(info.clone())?,
            None => primary(settings).await?,
        };
        // Without a timeout for replies: a call has the deadline.
        let config = AsyncConnectionConfig::new();
        let config = config.set_connection_timeout(Some(settings.connect_timeout)).set_response_timeout(None);
        let count = if settings.is_cluster() { 1 } else { settings.connections.max(1) };
        let mut all = Vec::new();
        for _ in 0..count {
            let opened = Connection::open(&client, config.clone(), pushes).await;
            all.push(Arc::new(opened.map_err(login_error)?));
        }
        let first = &all[0];
        // If it fails, the first call sends the text.
        let _ = first.send(&DECIDE.load()).await;
        let process = if settings.is_cluster() { process_of(first).await? } else { None };
        Ok(Connections { all, process, opened: Instant::now() })
    })
    .await
}

/// Says of a wrong password more than the server does.
fn login_error(error: RedisError) -> RedisError {
    match error.code() {
        Some("WRONGPASS") => (ErrorKind::AuthenticationFailed, "Password authentication failed").into(),
        _ => error,
    }
}

/// The server process of a node, if the user may run `INFO`. An error if it runs no script:
/// what is asked of one server, to check its dataset, is the task of one node only.
async fn process_of(connection: &Connection) -> RedisResult<Option<String>> {
    connection.evaluate(&Call::probe(None), false).await?;
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let info = connection.send(&info).await.ok().and_then(|info| redis::from_redis_value::<String>(info).ok());
    Ok(info.as_deref().and_then(run_id).map(str::to_owned))
}

/// A client of the primary that sentinels name at present.
async fn primary(settings: &Settings) -> RedisResult<Client> {
    let Servers { deployment: Deployment::Sentinel(primary), named: sentinels, login } = &settings.servers else {
        return Err((ErrorKind::InvalidClientConfig, "no sentinels").into());
    };
    let is_tls = matches!(sentinels.first().map(ConnectionInfo::addr), Some(ConnectionAddr::TcpTls { .. }));
    let mut info = SentinelNodeConnectionInfo::default().set_redis_connection_info(login.clone());
    if is_tls {
        info = info.set_tls_mode(TlsMode::Secure);
    }
    let mut sentinel =
        SentinelClient::build(sentinels.clone(), primary.clone(), Some(info), SentinelServerType::Master)?;
    let client = sentinel.async_get_client().await?;
    #[cfg(feature = "tls")]
    let client = match &settings.certificates {
        Some(certificates) if is_tls => {
            Client::build_with_tls(client.get_connection_info().clone(), certificates.clone())?
        }
        _ => client,
    };
    Ok(client)
}

pub(super) async fn within<T>(limit: Duration, call: impl Future<Output = RedisResult<T>>) -> Result<T, Failure> {
    match timeout(limit, call).await {
        Ok(reply) => reply.map_err(|error| Failure::of(&error)),
        Err(_) => Err(Failure::timeout(format!("not connected within {limit:?}"))),
    }
}

/// Installs a provider of cryptography, unless the process has chosen one: the
/// driver brings none, and panics without.
#[cfg(feature = "tls")]
pub(crate) fn provide_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
