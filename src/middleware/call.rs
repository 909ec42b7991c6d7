//! What the layer knows of one call besides its request: [`CallContext`].
//!
//! It decides nothing, and knows nothing of how the request was described. The
//! invariant: what an outer layer has put into a request's extensions stays there, or
//! in what replaces it.

use std::time::Duration;

use http::{Method, header::UPGRADE};

use super::{ChargeHandle, ClientMessages, ConnectionPermit, HttpRequest, InFlightGuard, RejectionContext};
use crate::{
    decision::Decision,
    descriptor::{Deadline, grpc},
    http::RequestHead,
    limiter::Lease,
};

/// What the layer needs of a call to send its request or to reject it.
pub(super) struct CallContext<Req> {
    /// The request, if it is one of HTTP.
    pub(super) http: fn(&mut Req) -> Option<&mut dyn HttpRequest>,
    /// The id of the layer's limiter.
    pub(super) limiter: u64,
    /// The layer's bound on waits.
    pub(super) max_wait: Duration,
    /// Whether the handler sees the decision.
    pub(super) expose: bool,
    /// Whether the handler may settle, even if nothing was charged.
    pub(super) settles: bool,
    /// Stands for the endpoint, for upstream feedback.
    pub(super) endpoint: u128,
}

impl<Req> CallContext<Req> {
    /// Gives an admitted request what its handler may need. Returns its guard, which
    /// keeps the lease.
    pub(super) fn prepare(
        &self,
        request: &mut Req,
        lease: Option<Lease>,
        decision: &Decision,
    ) -> Option<Box<InFlightGuard>> {
        let guard = lease.map(|lease| self.guard(lease, (self.http)(request)));
        if let Some(request) = (self.http)(request) {
            let extensions = request.extensions_mut();
            // An empty handle does not replace that of an outer layer.
            if self.settles && extensions.get::<ChargeHandle>().is_none() {
                extensions.insert(ChargeHandle::empty());
            }
            if self.expose {
                extensions.insert(decision.clone());
            }
        }
        guard
    }

    fn guard(&self, lease: Lease, http: Option<&mut dyn HttpRequest>) -> Box<InFlightGuard> {
        let mut guard = InFlightGuard::new(lease, self.endpoint);
        let time_left = http.as_ref().map_or(Duration::MAX, |request| time_left(&request.head()));
        // Whatever the content type: tonic ignores it too.
        let messages = guard.limit_messages(self.max_wait, time_left);
        let Some(request) = http else { return guard };
        let connection = connection(&request.head(), &mut guard);
        let extensions = request.extensions_mut();
        if let Some(permit) = connection {
            let outer = extensions.remove::<ConnectionPermit>();
            extensions.insert(permit.inside(outer));
        }
        if let Some(messages) = messages {
            let outer = extensions.remove::<ClientMessages>();
            extensions.insert(messages.inside(outer));
        }
        if let Some(charge) = guard.charge_handle() {
            extensions.insert(charge);
        }
        guard
    }

    /// The request is sent after a wait, which counts against a timeout that it carries.
    pub(super) fn waited(&self, request: &mut Req, waited: Duration) {
        let Some(request) = (self.http)(request) else { return };
        if let Some(timeout) = grpc::timeout(request.head().headers()) {
            let left = grpc::timeout_of(timeout.saturating_sub(waited));
            request.headers_mut().insert(grpc::GRPC_TIMEOUT, left);
        }
    }

    /// What the request's rejection is answered by.
    pub(super) fn rejection<'r>(&self, decision: Decision, request: &'r mut Req) -> RejectionContext<'r> {
        RejectionContext::new(self.limiter, decision, (self.http)(request))
    }
}

/// The permit for a request whose connection may outlive the response.
fn connection(head: &RequestHead<'_>, guard: &mut InFlightGuard) -> Option<ConnectionPermit> {
    // A tunnel, or a WebSocket over HTTP/2 (extended CONNECT, RFC 8441): any success
    // upgrades it.
    let is_connect = *head.method() == Method::CONNECT;
    (is_connect || head.headers().contains_key(UPGRADE)).then(|| guard.connection_permit(is_connect)).flatten()
}

/// The time until the request's own deadline.
fn time_left(head: &RequestHead<'_>) -> Duration {
    let deadline = head.extensions().get::<Deadline>().map(Deadline::remaining);
    let timeout = grpc::timeout(head.headers());
    deadline.into_iter().chain(timeout).min().unwrap_or(Duration::MAX)
}
