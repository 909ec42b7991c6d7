//! Server-sent events and long polls under a concurrency limit: in flight for as
//! long as the response lives, over real connections that end in every way.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Router,
    response::sse::{Event, Sse},
    routing::get,
};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::TcpStream,
    sync::{Mutex, Notify, mpsc},
    task::JoinHandle,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter};

use super::{common::Caller, serve, upgrades::until_in_flight};

type Events = mpsc::UnboundedSender<Result<Event, Infallible>>;

/// A server of events and long polls under `concurrent(1)`.
struct Site {
    server: Caller,
    limiter: RateLimiter,
    /// The senders of the streams that were opened.
    opened: Mutex<mpsc::UnboundedReceiver<Events>>,
    news: Arc<Notify>,
}

impl Site {
    async fn start() -> Self {
        let (open, opened) = mpsc::unbounded_channel();
        let events = async move || {
            let (sender, receiver) = mpsc::unbounded_channel();
            open.send(sender).unwrap();
            Sse::new(UnboundedReceiverStream::new(receiver))
        };
        let news = Arc::new(Notify::new());
        let poll = {
            let news = Arc::clone(&news);
            async move || {
                news.notified().await;
                "news"
            }
        };
        let limiter = RateLimiter::new(Quota::concurrent(1)).unwrap();
        let app = Router::new().route("/events", get(events)).route("/poll", get(poll));
        let server = serve(app.layer(RateLimitLayer::new(limiter.clone()))).await;
        Self { server, limiter, opened: Mutex::new(opened), news }
    }

    /// Opens a stream on a connection of its own.
    async fn listen(&self, version: Version) -> (Incoming, Events, JoinHandle<()>) {
        let stream = TokioIo::new(TcpStream::connect(self.server.address).await.unwrap());
        let request = Request::get(self.server.uri("/events")).body(Empty::<Bytes>::new()).unwrap();
        let (response, connection) = match version {
            Version::Http1 => {
                let (mut sender, connection) = http1::handshake(stream).await.unwrap();
                let connection = tokio::spawn(async { drop(connection.await) });
                (sender.send_request(request).await.unwrap(), connection)
            }
            Version::Http2 => {
                let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
                let connection = tokio::spawn(async { drop(connection.await) });
                (sender.send_request(request).await.unwrap(), connection)
            }
        };
        assert_eq!(response.status(), StatusCode::OK);
        (response.into_body(), self.opened.lock().await.recv().await.unwrap(), connection)
    }

    async fn assert_full(&self) {
        assert_eq!(self.server.get("/poll").await.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(self.limiter.stats().permits, 1);
    }

    /// The only unit is free again, and is there for the next request.
    async fn assert_free(&self) {
        until_in_flight(&self.limiter, 0).await;
        self.news.notify_one();
        assert_eq!(self.server.get("/poll").await.status, StatusCode::OK);
        until_in_flight(&self.limiter, 0).await;
    }
}

#[derive(Clone, Copy, Debug)]
enum Version {
    Http1,
    Http2,
}

async fn receive(body: &mut Incoming, event: &str, events: &Events) {
    events.send(Ok(Event::default().data(event))).unwrap();
    let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(frame, format!("data: {event}\n\n"));
}

#[tokio::test]
async fn a_stream_of_events_is_in_flight_until_the_server_ends_it() {
    let site = Site::start().await;
    for version in [Version::Http1, Version::Http2] {
        let (mut body, events, _) = site.listen(version).await;
        site.assert_full().await;
        for event in ["one", "two"] {
            receive(&mut body, event, &events).await;
            site.assert_full().await;
        }
        drop(events);
        assert!(body.collect().await.unwrap().to_bytes().is_empty());
        site.assert_free().await;
    }
}

#[tokio::test]
async fn a_stream_of_events_is_in_flight_until_its_client_has_left() {
    let site = Site::start().await;
    for version in [Version::Http1, Version::Http2] {
        let (mut body, events, connection) = site.listen(version).await;
        receive(&mut body, "one", &events).await;
        site.assert_full().await;
        // In the middle of the stream, of which no more is sent.
        match version {
            Version::Http1 => connection.abort(),
            // The connection stays; the stream is reset.
            Version::Http2 => drop(body),
        }
        site.assert_free().await;
        assert!(events.is_closed(), "{version:?}: the handler's stream was dropped");
    }
}

#[tokio::test]
async fn a_long_poll_is_in_flight_until_it_is_answered() {
    let site = Site::start().await;
    let polling = tokio::spawn({
        let server = site.server.clone();
        async move { server.get("/poll").await }
    });
    until_in_flight(&site.limiter, 1).await;
    site.assert_full().await;
    site.news.notify_one();
    assert_eq!(polling.await.unwrap().body, "news");
    site.assert_free().await;
}

#[tokio::test]
async fn a_long_poll_is_in_flight_until_its_client_has_left() {
    let site = Site::start().await;
    let stream = TokioIo::new(TcpStream::connect(site.server.address).await.unwrap());
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    let connection = tokio::spawn(async { drop(connection.await) });
    let request = Request::get(site.server.uri("/poll")).body(Empty::<Bytes>::new()).unwrap();
    let polling = tokio::spawn(sender.send_request(request));
    until_in_flight(&site.limiter, 1).await;
    site.assert_full().await;
    connection.abort();
    assert!(polling.await.unwrap().is_err());
    site.assert_free().await;
}
