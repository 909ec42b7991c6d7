use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use http_body_util::Full;

use super::{
    InFlightGuard,
    messages::{Meter, Passage},
};
use crate::http::grpc;

pin_project_lite::pin_project! {
    /// The inner service's body, or that of a rejection.
    ///
    /// A request whose rules limit what is in flight at once is in flight
    /// until its body has ended, or failed, or is dropped.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
        holding: Option<InFlightGuard>,
        metered: Option<Metered>,
    }
}

/// Messages that go one by one.
#[derive(Debug)]
struct Metered {
    meter: Box<Meter>,
    /// What the inner body gave last that has not gone.
    rest: Bytes,
}

pin_project_lite::pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Rejection { body: Full<Bytes> },
    }
}

impl<B> Body<B> {
    pub(super) fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body }, holding: None, metered: None }
    }

    pub(super) fn holding(self, holding: InFlightGuard, meter: Option<Box<Meter>>) -> Self {
        let metered = meter.map(|meter| Metered { meter, rest: Bytes::new() });
        Self { holding: Some(holding), metered, ..self }
    }

    /// How many bytes are held back.
    fn waiting(&self) -> usize {
        self.metered.as_ref().map_or(0, |metered| metered.rest.len())
    }

    pub(super) fn rejection(body: Full<Bytes>) -> Self {
        Self { kind: Kind::Rejection { body }, holding: None, metered: None }
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
        let mut body = self.project();
        match body.kind.as_mut().project() {
            KindProjection::Inner { body: mut inner } => loop {
                if let Some(Metered { meter, rest }) = &mut *body.metered
                    && !rest.is_empty()
                {
                    match ready!(meter.poll(cx, rest)) {
                        Passage::Goes(bytes) => {
                            let goes = rest.split_to(bytes.min(rest.len()));
                            return Poll::Ready(Some(Ok(Frame::data(B::Data::from(goes)))));
                        }
                        Passage::Rejected(rejection) => {
                            (*body.holding, *body.metered) = (None, None);
                            // The handler need not go on.
                            body.kind.set(Kind::Rejection { body: Full::default() });
                            return Poll::Ready(Some(Ok(Frame::trailers(grpc::trailers(&rejection)))));
                        }
                    }
                }
                let frame = ready!(inner.as_mut().poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    *body.holding = None;
                }
                let Some(Metered { rest, .. }) = &mut *body.metered else { return Poll::Ready(frame) };
                let frame = match frame {
                    Some(Ok(frame)) => frame,
                    end => return Poll::Ready(end),
                };
                match frame.into_data() {
                    Ok(mut data) if data.has_remaining() => *rest = data.copy_to_bytes(data.remaining()),
                    Ok(empty) => return Poll::Ready(Some(Ok(Frame::data(empty)))),
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                }
            },
            KindProjection::Rejection { body } => Pin::new(body).poll_frame(cx).map(|frame| {
                let Ok(frame) = frame?;
                Some(Ok(frame.map_data(B::Data::from)))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream() && self.waiting() == 0,
            Kind::Rejection { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            // It may be ended before.
            Kind::Inner { .. } if self.metered.is_some() => SizeHint::default(),
            Kind::Inner { body } => body.size_hint(),
            Kind::Rejection { body } => body.size_hint(),
        }
    }
}
