//! Calls over HTTP: by the client that comes along, or by any other.

use std::{error::Error, future::Future, future::poll_fn, pin::Pin, time::Duration};

use bytes::{Buf, Bytes};
use http::{Request, Response, Uri, uri::Scheme};
use http_body::Body as _;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower_service::Service;

use super::SourceError;
use crate::error::ConfigError;

type BoxError = Box<dyn Error + Send + Sync>;
pub(super) type Body = UnsyncBoxBody<Bytes, BoxError>;
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

pub(super) struct Client(Box<dyn FnMut(Request<Full<Bytes>>) -> Answer + Send>);

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(2);

impl Client {
    /// Without encryption: that is the business of other clients.
    pub(super) fn plain() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        Self::over(legacy::Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector))
    }

    pub(super) fn over<S, B>(service: S) -> Self
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

/// The body; nothing where it has more than so many bytes.
pub(super) async fn read(mut body: Body, most: usize) -> Result<Option<Vec<u8>>, SourceError> {
    let mut bytes = Vec::new();
    let mut expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    while expected <= most {
        let Some(frame) = body.frame().await else { return Ok(Some(bytes)) };
        if let Ok(data) = frame.map_err(SourceError::new)?.into_data() {
            expected = bytes.len().saturating_add(data.len());
            if expected <= most {
                bytes.extend_from_slice(&data);
            }
        }
    }
    Ok(None)
}

/// A URL with a host and without a name and password, which may be encrypted
/// only where the client says that it can.
pub(super) fn url(text: &str, encrypted: bool) -> Result<Uri, ConfigError> {
    let rejected = |reason: &str| ConfigError::new("url", reason);
    let uri: Uri = text.parse().map_err(|_| rejected("is no URL"))?;
    let Some(authority) = uri.authority() else { return Err(rejected("needs a scheme and a host")) };
    if authority.as_str().contains('@') {
        return Err(rejected("must hold no name and no password: send them in a header"));
    }
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => Ok(uri),
        Some(scheme) if *scheme == Scheme::HTTPS && encrypted => Ok(uri),
        Some(scheme) if *scheme == Scheme::HTTPS => Err(rejected("needs a client that encrypts: see `over`")),
        _ => Err(rejected("must start with `http://` or `https://`")),
    }
}

/// Without its query, which may hold what is secret.
pub(super) fn named(uri: &Uri) -> String {
    format!("{}{}", root(uri), uri.path())
}

/// Where its server is.
pub(super) fn root(uri: &Uri) -> String {
    let (scheme, authority) = (uri.scheme_str().unwrap_or_default(), uri.authority().map_or("", |host| host.as_str()));
    format!("{scheme}://{authority}")
}
