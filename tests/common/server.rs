//! An HTTP server for a service, and a client that calls it.

use std::{convert::Infallible, error::Error, net::SocketAddr};

use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder};
use tower_ratelimit::tenant::PeerAddr;

use super::Reply;

/// Serves on a free port, and passes the peer address to the service.
pub(crate) async fn serve<S, B>(service: S) -> Caller
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let with_peer = move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddr(peer));
                request
            };
            let service = ServiceBuilder::new().map_request(with_peer).service(service.clone());
            let connection =
                http1::Builder::new().serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            tokio::spawn(connection);
        }
    });
    Caller::new(address)
}

/// A client of one server.
#[derive(Clone)]
pub(crate) struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
    pub(crate) address: SocketAddr,
}

impl Caller {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), address }
    }

    pub(crate) fn uri(&self, path: &str) -> Uri {
        format!("http://{}{path}", self.address).parse().unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, &[]).await
    }

    pub(crate) async fn get_as(&self, tenant: &str) -> Reply {
        self.call(Method::GET, "/", &[("x-api-key", tenant.as_bytes())]).await
    }

    /// Header values are bytes, because a server must accept any.
    pub(crate) async fn call(&self, method: Method, path: &str, headers: &[(&str, &[u8])]) -> Reply {
        self.send(method, path, headers, Bytes::new()).await
    }

    pub(crate) async fn send(&self, method: Method, path: &str, headers: &[(&str, &[u8])], body: Bytes) -> Reply {
        let mut request = Request::builder().method(method).uri(self.uri(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Full::new(body)).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        Reply { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }
}
