//! The body of a limited response: [`Body`].
//!
//! It decides nothing and changes no byte. The invariant: it keeps the request in
//! flight until the inner body has ended, has failed or is dropped.

use std::{
    error::Error,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use super::{InFlightGuard, messages::Stopped};
use crate::{http::rejection, sync::lock};

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

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
    }
}

pin_project_lite::pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B, guard: Option<Box<InFlightGuard>> },
        Rejection { body: Full<Bytes> },
        Hook { body: HookBody },
    }
}

impl<B> Body<B> {
    /// The guard, if there is one, may limit the body's messages.
    pub(super) fn inner(body: B, guard: Option<Box<InFlightGuard>>) -> Self {
        Self { kind: Kind::Inner { body, guard } }
    }

    pub(super) fn rejection(body: Full<Bytes>) -> Self {
        Self { kind: Kind::Rejection { body } }
    }

    pub(super) fn hook(body: HookBody) -> Self {
        Self { kind: Kind::Hook { body } }
    }
}

impl<B: Default> Default for Body<B> {
    fn default() -> Self {
        Self::inner(B::default(), None)
    }
}

impl<B> http_body::Body for Body<B>
where
    B: http_body::Body<Data: From<Bytes>, Error: Into<BoxError>>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut kind = self.project().kind;
        let frame = match kind.as_mut().project() {
            KindProjection::Inner { body, guard } => {
                let frame = match guard.as_mut().and_then(|guard| guard.messages.as_mut()) {
                    Some(messages) => ready!(messages.poll_frame(body, cx)),
                    None => ready!(body.poll_frame(cx)).map(|frame| frame.map_err(Stopped::Failed)),
                };
                match (&frame, guard.as_mut()) {
                    (Some(Ok(frame)), Some(guard)) => guard.count_bytes(frame),
                    (Some(Ok(_)), None) => {}
                    _ => *guard = None,
                }
                frame
            }
            KindProjection::Rejection { body } => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                return Poll::Ready(frame.map(|Ok(frame)| Ok(frame.map_data(B::Data::from))));
            }
            KindProjection::Hook { body } => {
                let body = body.get_mut().unwrap_or_else(PoisonError::into_inner);
                let frame = ready!(Pin::new(body).poll_frame(cx));
                return Poll::Ready(frame.map(|frame| Ok(frame?.map_data(B::Data::from))));
            }
        };
        Poll::Ready(frame.map(|frame| match frame {
            Ok(frame) => Ok(frame),
            Err(Stopped::Failed(error)) => Err(error.into()),
            Err(Stopped::Rejected(rejection)) => {
                // Drops the inner body, which stops the handler.
                kind.set(Kind::Rejection { body: Full::default() });
                Ok(Frame::trailers(rejection::grpc_trailers(&rejection)))
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, guard } => {
                let messages = guard.as_ref().and_then(|guard| guard.messages.as_ref());
                body.is_end_stream() && !messages.is_some_and(|messages| messages.has_buffered())
            }
            Kind::Rejection { body } => body.is_end_stream(),
            Kind::Hook { body } => lock(body).is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            // A rejected message ends the body early.
            Kind::Inner { guard: Some(guard), .. } if guard.messages.is_some() => SizeHint::default(),
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Rejection { body } => body.size_hint(),
            Kind::Hook { body } => lock(body).size_hint(),
        }
    }
}

/// The body of a hook's response, of any type. The mutex only makes it `Sync`; it is
/// never contended.
pub(super) type HookBody = Mutex<UnsyncBoxBody<Bytes, BoxError>>;

pub(super) fn hook_body<B>(body: B) -> HookBody
where
    B: http_body::Body<Error: Into<BoxError>> + Send + 'static,
{
    Mutex::new(BytesBody { body }.boxed_unsync())
}

pin_project_lite::pin_project! {
    /// A body whose data are bytes. Unlike that of `map_frame`, it keeps its length.
    struct BytesBody<B> {
        #[pin]
        body: B,
    }
}

impl<B> http_body::Body for BytesBody<B>
where
    B: http_body::Body<Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let to_bytes = |frame: Frame<B::Data>| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
        let frame = ready!(self.project().body.poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map(to_bytes).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
