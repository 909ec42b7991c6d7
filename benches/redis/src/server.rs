//! The Redis server that all contenders share.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::AnyError;

/// A `redis-server` process. Dropping this stops it.
pub struct Server {
    process: Child,
    port: u16,
}

impl Server {
    pub async fn start() -> Result<Self, AnyError> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("`redis-server` is needed: {error}"))?;
        let server = Self { process, port };
        let start = Instant::now();
        while server.version().await.is_err() {
            if start.elapsed() > Duration::from_secs(10) {
                return Err("`redis-server` does not answer".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `Redis 7.0.15`
    pub async fn version(&self) -> Result<String, AnyError> {
        let mut connection = redis::Client::open(self.url())?.get_multiplexed_async_connection().await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        let valkey = field("valkey_version:").map(|version| format!("Valkey {version}"));
        let redis = field("redis_version:").map(|version| format!("Redis {version}"));
        valkey.or(redis).ok_or_else(|| "a server of no version".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
