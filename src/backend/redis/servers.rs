//! Servers as they are set: URLs, login and certificates, and the connection
//! settings that they make. It connects to nothing.
//!
//! Invariant: no error and no debug output contains a password.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::settings::Servers;
use crate::error::ConfigError;

/// Where the store is, and how to log in.
#[derive(Clone, Default)]
pub(crate) struct ServerConfig {
    pub(crate) urls: Urls,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<u32>,
    #[cfg(feature = "redis-tls")]
    pub(crate) root_certificate: Option<Vec<u8>>,
    #[cfg(feature = "redis-tls")]
    pub(crate) client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone)]
pub(crate) enum Urls {
    Single(String),
    Cluster(Vec<String>),
    Sentinel(String, Vec<String>),
}

impl Default for Urls {
    fn default() -> Self {
        Self::Single("redis://127.0.0.1:6379".into())
    }
}

impl Urls {
    pub(crate) fn without_secrets(&self) -> Vec<String> {
        match self {
            Self::Single(url) => vec![without_secrets(url)],
            Self::Cluster(urls) | Self::Sentinel(_, urls) => urls.iter().map(|url| without_secrets(url)).collect(),
        }
    }
}

impl ServerConfig {
    pub(crate) fn servers(&self) -> Result<Servers, ConfigError> {
        match &self.urls {
            Urls::Single(url) => self.info("url", url, true).map(Servers::Single),
            Urls::Cluster(urls) => {
                let nodes = self.infos("cluster", urls, true)?;
                match nodes.iter().all(|node| node.redis_settings().db() == 0) {
                    true => Ok(Servers::Cluster(nodes)),
                    false => Err(ConfigError::new("database", "a cluster has only database 0")),
                }
            }
            Urls::Sentinel(primary, urls) => Ok(Servers::Sentinel {
                primary: primary.clone(),
                sentinels: self.infos("sentinel", urls, false)?,
                node: Box::new(self.login(redis::RedisConnectionInfo::default())),
            }),
        }
    }

    fn infos(&self, key: &'static str, urls: &[String], logs_in: bool) -> Result<Vec<ConnectionInfo>, ConfigError> {
        let infos: Vec<_> = urls.iter().map(|url| self.info(key, url, logs_in)).collect::<Result<_, _>>()?;
        if infos.is_empty() { Err(ConfigError::new(key, "names no server")) } else { Ok(infos) }
    }

    fn info(&self, key: &'static str, url: &str, logs_in: bool) -> Result<ConnectionInfo, ConfigError> {
        let invalid = |reason: String| ConfigError::new(key, reason).with_value(without_secrets(url));
        let info = url.into_connection_info().map_err(|error| {
            // The driver's detail may repeat a part of the URL.
            let text = error.to_string();
            invalid(text.split(" - ").next().unwrap_or("not a URL of a Redis server").to_owned())
        })?;
        if !info.addr().is_supported() {
            return Err(invalid("needs the feature `redis-tls`".into()));
        }
        if key != "url" && matches!(info.addr(), ConnectionAddr::Unix(_)) {
            return Err(invalid("must be reached over TCP".into()));
        }
        let login = info.redis_settings().clone();
        let info = if logs_in { info.set_redis_settings(self.login(login)) } else { info };
        #[cfg(feature = "redis-tls")]
        let info = self.with_certificates(info)?;
        Ok(info)
    }

    /// In RESP3 the driver tells when a connection has ended.
    fn login(&self, login: redis::RedisConnectionInfo) -> redis::RedisConnectionInfo {
        let mut login = login.set_protocol(ProtocolVersion::RESP3);
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        match self.database {
            Some(database) => login.set_db(database.into()),
            None => login,
        }
    }

    #[cfg(feature = "redis-tls")]
    pub(crate) fn certificates(&self) -> Option<redis::TlsCertificates> {
        let client_tls = self.client_certificate.clone();
        let client_tls = client_tls.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
        let root_cert = self.root_certificate.clone();
        (client_tls.is_some() || root_cert.is_some()).then_some(redis::TlsCertificates { client_tls, root_cert })
    }

    #[cfg(feature = "redis-tls")]
    fn with_certificates(&self, info: ConnectionInfo) -> Result<ConnectionInfo, ConfigError> {
        let invalid = |reason| ConfigError::new("certificate", reason);
        let Some(certificates) = self.certificates() else { return Ok(info) };
        let client = self.client_certificate.iter().flat_map(|(certificate, key)| [certificate, key]);
        let is_pem = |pem: &Vec<u8>| pem.windows(11).any(|part| part == b"-----BEGIN ");
        if !self.root_certificate.iter().chain(client).all(is_pem) {
            return Err(invalid("not a certificate and key in PEM"));
        }
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Err(invalid("is of use with `rediss://` only"));
        }
        redis::Client::build_with_tls(info, certificates)
            .map(|client| client.get_connection_info().clone())
            .map_err(|_| invalid("not a certificate and key in PEM"))
    }
}

/// A URL without what is before its `@` and after its `?`.
fn without_secrets(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        (None, Some((_, rest))) => rest.to_owned(),
        _ => url.to_owned(),
    }
}
