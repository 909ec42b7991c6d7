use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc;

/// Sends chunks of a [`ChunkedBody`].
pub(crate) struct Chunks(mpsc::Sender<&'static str>);

/// A body that ends when its sender is dropped.
pub(crate) struct ChunkedBody(mpsc::Receiver<&'static str>);

impl Chunks {
    pub(crate) fn new() -> (Self, ChunkedBody) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), ChunkedBody(receiver))
    }

    pub(crate) async fn send(&self, chunk: &'static str) {
        self.0.send(chunk).await.unwrap();
    }
}

impl http_body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))))
    }
}
