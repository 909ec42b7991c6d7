use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::Full;

use super::Holding;

pin_project_lite::pin_project! {
    /// The inner service's body, or that of a refusal.
    ///
    /// A request whose rules limit what is in flight at once is in flight
    /// until its body has ended, or failed, or is dropped.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
        holding: Option<Holding>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Refusal { body: Full<Bytes> },
    }
}

impl<B> Body<B> {
    pub(super) fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body }, holding: None }
    }

    pub(super) fn holding(self, holding: Holding) -> Self {
        Self { holding: Some(holding), ..self }
    }

    pub(super) fn refusal(body: Full<Bytes>) -> Self {
        Self { kind: Kind::Refusal { body }, holding: None }
    }
}

impl<B: Default> Default for Body<B> {
    fn default() -> Self {
        Self::inner(B::default())
    }
}

impl<B> http_body::Body for Body<B>
where
    B: http_body::Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let body = self.project();
        match body.kind.project() {
            KindProjection::Inner { body: inner } => {
                let frame = ready!(inner.poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    *body.holding = None;
                }
                Poll::Ready(frame)
            }
            KindProjection::Refusal { body } => Pin::new(body).poll_frame(cx).map(|frame| {
                let Ok(frame) = frame?;
                Some(Ok(frame.map_data(B::Data::from)))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Refusal { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Refusal { body } => body.size_hint(),
        }
    }
}
