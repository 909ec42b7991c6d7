//! Rejections of requests whose bodies the server has not read, over HTTP/1.

use axum::Router;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tower_ratelimit::Quota;

use super::{answer, layer, serve};

/// A connection to a server that rejects.
async fn connect() -> TcpStream {
    let server = serve(Router::new().route("/", answer()).layer(layer(Quota::per_second(0)))).await;
    TcpStream::connect(server.address).await.unwrap()
}

/// The head of the next response, in lower case. Reads its body too.
async fn response(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"}") {
        let mut some = [0; 1_024];
        let bytes = stream.read(&mut some).await.unwrap();
        assert!(bytes > 0, "{}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&some[..bytes]);
    }
    String::from_utf8(read).unwrap().to_ascii_lowercase()
}

fn post(framing: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn a_short_body_keeps_the_connection() {
    let mut stream = connect().await;
    for _ in 0..3 {
        let mut request = post("content-length: 1000");
        request.resize(request.len() + 1_000, b'x');
        stream.write_all(&request).await.unwrap();
        let response = response(&mut stream).await;
        assert!(response.starts_with("http/1.1 429 ") && !response.contains("connection:"), "{response}");
    }
}

/// Otherwise clients reuse it, and their next request fails.
#[tokio::test]
async fn a_rejection_before_a_long_body_says_that_the_connection_closes() {
    for framing in ["content-length: 65536", "transfer-encoding: chunked"] {
        let mut stream = connect().await;
        stream.write_all(&post(framing)).await.unwrap();
        let response = response(&mut stream).await;
        assert!(response.starts_with("http/1.1 429 ") && response.contains("\r\nconnection: close\r\n"), "{response}");
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0, "it is closed");
    }
}

/// A client that goes on reading after its write has failed sees the rejection.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_rejection_is_readable_after_the_body_could_not_be_sent() {
    let mut stream = connect().await;
    stream.write_all(&post("content-length: 104857600")).await.unwrap();
    let piece = [b'x'; 65_536];
    let mut sent = 0;
    while stream.write_all(&piece).await.is_ok() {
        sent += piece.len();
        assert!(sent < 104_857_600, "the server reads it all");
    }
    assert!(response(&mut stream).await.starts_with("http/1.1 429 "));
}
