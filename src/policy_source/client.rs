//! HTTP for the sources that need it: the built-in client, or the application's.
//!
//! The built-in client does not encrypt, and no client follows redirections
//! here. A body is never read beyond its limit.

use std::{error::Error, future::poll_fn, pin::Pin, time::Duration};

use bytes::{Buf, Bytes};
use http::{Request, Response, Uri, uri::Scheme};
use http_body::Body as _;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower_service::Service;

use super::source::SourceError;
use crate::error::ConfigError;

type BoxError = Box<dyn Error + Send + Sync>;
pub(super) type Body = UnsyncBoxBody<Bytes, BoxError>;
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

pub(super) struct Client(Box<dyn FnMut(Request<Full<Bytes>>) -> ResponseFuture + Send>);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl Client {
    /// The built-in client, without encryption.
    pub(super) fn plain() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        Self::new(legacy::Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector))
    }

    pub(super) fn new<S, B>(service: S) -> Self
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        Self(Box::new(move |request| {
            let mut service = service.clone();
            Box::pin(async move {
                poll_fn(|context| service.poll_ready(context)).await.map_err(Into::into)?;
                let response = service.call(request).await.map_err(Into::into)?;
                let whole = |mut data: B::Data| data.copy_to_bytes(data.remaining());
                Ok(response
                    .map(|body| body.map_frame(move |frame| frame.map_data(whole)).map_err(Into::into).boxed_unsync()))
            })
        }))
    }

    pub(super) async fn call(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Body>, SourceError> {
        (self.0)(request).await.map_err(SourceError::new)
    }
}

/// The whole body, or `None` if it has more than `max_bytes`.
pub(super) async fn read(mut body: Body, max_bytes: usize) -> Result<Option<Vec<u8>>, SourceError> {
    let mut bytes = Vec::new();
    let mut expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    while expected <= max_bytes {
        let Some(frame) = body.frame().await else { return Ok(Some(bytes)) };
        if let Ok(data) = frame.map_err(SourceError::new)?.into_data() {
            expected = bytes.len().saturating_add(data.len());
            if expected <= max_bytes {
                bytes.extend_from_slice(&data);
            }
        }
    }
    Ok(None)
}

/// Parses a URL with a host and without credentials. `https` is allowed only
/// for a client that may encrypt.
pub(super) fn url(text: &str, allow_https: bool) -> Result<Uri, ConfigError> {
    let error = |reason: &str| ConfigError::new("url", reason);
    let uri: Uri = text.parse().map_err(|_| error("must be a URL"))?;
    let Some(authority) = uri.authority() else { return Err(error("needs a scheme and a host")) };
    if authority.as_str().contains('@') {
        return Err(error("must hold no name and no password: send them in a header"));
    }
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => Ok(uri),
        Some(scheme) if *scheme == Scheme::HTTPS && allow_https => Ok(uri),
        Some(scheme) if *scheme == Scheme::HTTPS => Err(error("needs a client that encrypts: see `with_client`")),
        _ => Err(error("must start with `http://` or `https://`")),
    }
}

/// The URL without its query, which may hold a secret.
pub(super) fn name(uri: &Uri) -> String {
    format!("{}{}", root(uri), uri.path())
}

/// Scheme, host and port.
pub(super) fn root(uri: &Uri) -> String {
    let (scheme, authority) = (uri.scheme_str().unwrap_or_default(), uri.authority().map_or("", |host| host.as_str()));
    format!("{scheme}://{authority}")
}
