//! The body of a limited response: [`Body`].
//!
//! It keeps the request in flight until the inner body has ended, has failed
//! or is dropped.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::Full;

use super::{
    InFlightGuard,
    messages::MessageLimiter,
    rejection::{BoxError, HookBody},
};
use crate::http::grpc;

pin_project_lite::pin_project! {
    /// The inner service's body, or that of a rejection. Its error is boxed, since
    /// the body of an `on_rejected` hook may fail in its own way.
    ///
    /// A request under a concurrency limit is in flight until its body has
    /// ended, has failed or is dropped.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
        guard: Option<InFlightGuard>,
        messages: Option<Box<MessageLimiter>>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Rejection { body: Full<Bytes> },
        Hook { body: HookBody },
    }
}

impl<B> Body<B> {
    #[inline]
    pub(super) fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body }, guard: None, messages: None }
    }

    pub(super) fn in_flight(body: B, guard: InFlightGuard, messages: Option<Box<MessageLimiter>>) -> Self {
        Self { kind: Kind::Inner { body }, guard: Some(guard), messages }
    }

    pub(super) fn rejection(body: Full<Bytes>) -> Self {
        Self { kind: Kind::Rejection { body }, guard: None, messages: None }
    }

    pub(super) fn hook(body: HookBody) -> Self {
        Self { kind: Kind::Hook { body }, guard: None, messages: None }
    }
}

impl<B: Default> Default for Body<B> {
    fn default() -> Self {
        Self::inner(B::default())
    }
}

impl<B> http_body::Body for Body<B>
where
    B: http_body::Body<Data: From<Bytes>, Error: Into<BoxError>>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut body = self.project();
        match body.kind.as_mut().project() {
            KindProjection::Inner { body: mut inner } => loop {
                if let Some(messages) = &mut *body.messages
                    && let Some(admitted) = ready!(messages.poll_admitted(cx))
                {
                    return Poll::Ready(Some(Ok(match admitted {
                        Ok(bytes) => Frame::data(B::Data::from(bytes)),
                        Err(rejection) => {
                            (*body.guard, *body.messages) = (None, None);
                            // Drops the inner body, which stops the handler.
                            body.kind.set(Kind::Rejection { body: Full::default() });
                            Frame::trailers(grpc::trailers(&rejection))
                        }
                    })));
                }
                let frame = ready!(inner.as_mut().poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    *body.guard = None;
                }
                match (&mut *body.messages, frame) {
                    (Some(messages), Some(Ok(frame))) => {
                        if let Some(frame) = messages.buffer(frame) {
                            return Poll::Ready(Some(Ok(frame)));
                        }
                    }
                    (_, frame) => return Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
                }
            },
            KindProjection::Rejection { body } => Pin::new(body).poll_frame(cx).map(|frame| {
                let Ok(frame) = frame?;
                Some(Ok(frame.map_data(B::Data::from)))
            }),
            KindProjection::Hook { body } => {
                body.poll_frame(cx).map(|frame| Some(frame?.map(|frame| frame.map_data(B::Data::from))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream() && !self.messages.as_ref().is_some_and(|m| m.has_buffered()),
            Kind::Rejection { body } => body.is_end_stream(),
            Kind::Hook { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            // A rejected message ends the body early.
            Kind::Inner { .. } if self.messages.is_some() => SizeHint::default(),
            Kind::Inner { body } => body.size_hint(),
            Kind::Rejection { body } => body.size_hint(),
            Kind::Hook { body } => body.size_hint(),
        }
    }
}
