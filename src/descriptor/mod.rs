//! What the limiter needs to know of a request: [`Descriptor`], and who pays
//! for it: [`Tenant`].

mod deadline;
pub(crate) mod grpc;

use std::{borrow::Cow, net::IpAddr, sync::Arc, time::Duration};

use http::{Extensions, HeaderMap};

pub use self::deadline::Deadline;

/// Who pays for a request, and on which plan. Put one into a request's
/// extensions to have it found by the layer.
///
/// A tenant is a name or an address; the two never share a counter.
///
/// ```
/// use tower_ratelimit::Tenant;
///
/// let tenant = Tenant::new("acme").plan("pro");
/// let caller = Tenant::address([192, 0, 2, 7].into());
/// assert_ne!(tenant, caller);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tenant {
    id: OwnedId,
    plan: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum OwnedId {
    Name(Arc<str>),
    Address(IpAddr),
}

impl Tenant {
    /// A tenant known by name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { id: OwnedId::Name(name.into()), plan: None }
    }

    /// A tenant known by address. Not cut to a prefix.
    #[inline]
    #[must_use]
    pub fn address(address: IpAddr) -> Self {
        Self { id: OwnedId::Address(address), plan: None }
    }

    /// The plan that chooses the quotas, where a rule has quotas for it.
    #[inline]
    #[must_use]
    pub fn plan(mut self, plan: impl Into<Arc<str>>) -> Self {
        self.plan = Some(plan.into());
        self
    }

    /// The tenant's name or address.
    #[inline]
    #[must_use]
    pub fn id(&self) -> TenantId<'_> {
        match &self.id {
            OwnedId::Name(name) => TenantId::Name(name),
            OwnedId::Address(address) => TenantId::Address(*address),
        }
    }

    /// The tenant, borrowed.
    #[inline]
    #[must_use]
    pub fn as_ref(&self) -> TenantRef<'_> {
        let id = match &self.id {
            OwnedId::Name(name) => Id::Name(Cow::Borrowed(name)),
            OwnedId::Address(address) => Id::Address(*address),
        };
        TenantRef { id, plan: self.plan.as_deref().map(Cow::Borrowed) }
    }
}

impl From<&str> for Tenant {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for Tenant {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<IpAddr> for Tenant {
    fn from(address: IpAddr) -> Self {
        Self::address(address)
    }
}

/// A tenant's name or address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TenantId<'a> {
    /// Any text: an API key, an organization.
    Name(&'a str),
    /// A network address, cut to its prefix where it is a caller's.
    Address(IpAddr),
}

/// A borrowed [`Tenant`].
///
/// ```
/// use tower_ratelimit::descriptor::TenantRef;
///
/// let tenant = TenantRef::name("acme").plan("pro");
/// assert_eq!(tenant.into_owned(), tower_ratelimit::Tenant::new("acme").plan("pro"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TenantRef<'a> {
    id: Id<'a>,
    plan: Option<Cow<'a, str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Id<'a> {
    Name(Cow<'a, str>),
    Address(IpAddr),
}

impl<'a> TenantRef<'a> {
    /// A tenant known by name.
    pub fn name(name: impl Into<Cow<'a, str>>) -> Self {
        Self { id: Id::Name(name.into()), plan: None }
    }

    /// A tenant known by address. Not cut to a prefix.
    #[inline]
    #[must_use]
    pub fn address(address: IpAddr) -> Self {
        Self { id: Id::Address(address), plan: None }
    }

    /// The plan that chooses the quotas.
    #[inline]
    #[must_use]
    pub fn plan(mut self, plan: impl Into<Cow<'a, str>>) -> Self {
        self.plan = Some(plan.into());
        self
    }

    /// The tenant's name or address.
    #[inline]
    #[must_use]
    pub fn id(&self) -> TenantId<'_> {
        match &self.id {
            Id::Name(name) => TenantId::Name(name),
            Id::Address(address) => TenantId::Address(*address),
        }
    }

    /// A copy that borrows nothing.
    #[inline]
    #[must_use]
    pub fn into_owned(self) -> Tenant {
        let id = match self.id {
            Id::Name(name) => OwnedId::Name(name.into()),
            Id::Address(address) => OwnedId::Address(address),
        };
        Tenant { id, plan: self.plan.map(Into::into) }
    }
}

impl<'a> From<&'a str> for TenantRef<'a> {
    fn from(name: &'a str) -> Self {
        Self::name(name)
    }
}

impl From<String> for TenantRef<'_> {
    fn from(name: String) -> Self {
        Self::name(name)
    }
}

impl From<IpAddr> for TenantRef<'_> {
    fn from(address: IpAddr) -> Self {
        Self::address(address)
    }
}

impl From<TenantId<'_>> for Tenant {
    fn from(id: TenantId<'_>) -> Self {
        match id {
            TenantId::Name(name) => Self::new(name),
            TenantId::Address(address) => Self::address(address),
        }
    }
}

impl From<Tenant> for TenantRef<'_> {
    fn from(tenant: Tenant) -> Self {
        let id = match tenant.id {
            OwnedId::Name(name) => Id::Name(Cow::Owned(name.as_ref().into())),
            OwnedId::Address(address) => Id::Address(address),
        };
        Self { id, plan: tenant.plan.map(|plan| Cow::Owned(plan.as_ref().into())) }
    }
}

/// What happens to a request whose tenant is not found, where a rule counts
/// per tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingTenant {
    /// All such requests share one anonymous tenant.
    #[default]
    Anonymous,
    /// Rejected: 401 over HTTP.
    Reject,
    /// The rules that count per tenant let it pass.
    Allow,
}

/// What the limiter needs to know of a request.
///
/// ```
/// use tower_ratelimit::Descriptor;
///
/// let request = Descriptor::new("/v1/products/7").method("GET").tenant("acme").plan("pro").cost(2);
/// assert_eq!(request.path(), "/v1/products/7");
/// ```
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    pub(crate) path: &'a str,
    pub(crate) method: &'a str,
    pub(crate) route: Option<&'a str>,
    pub(crate) tenant: Option<TenantRef<'a>>,
    pub(crate) plan: Option<&'a str>,
    pub(crate) cost: u64,
    pub(crate) missing_tenant: MissingTenant,
    pub(crate) exempt: bool,
    max_wait: Duration,
    /// Where its [`Deadline`] is, if it has one; looked up only if something
    /// is to wait.
    pub(crate) extensions: Option<&'a Extensions>,
    /// Where the timeout of a gRPC call is; looked up likewise.
    pub(crate) headers: Option<&'a HeaderMap>,
}

impl<'a> Descriptor<'a> {
    /// A request of cost 1 for `path`, by nobody in particular.
    #[inline]
    #[must_use]
    pub const fn new(path: &'a str) -> Self {
        Self {
            path,
            method: "",
            route: None,
            tenant: None,
            plan: None,
            cost: 1,
            missing_tenant: MissingTenant::Anonymous,
            exempt: false,
            max_wait: Duration::MAX,
            extensions: None,
            headers: None,
        }
    }

    /// The request's method, as sent: `GET`.
    #[inline]
    #[must_use]
    pub fn method(mut self, method: &'a str) -> Self {
        self.method = method;
        self
    }

    /// The route's pattern, where the router's answer is known.
    #[inline]
    #[must_use]
    pub fn route(mut self, route: &'a str) -> Self {
        self.route = Some(route);
        self
    }

    /// Who pays: a name, an address, or a [`TenantRef`].
    #[inline]
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<TenantRef<'a>>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// The plan that chooses the quotas; before the tenant's own.
    #[inline]
    #[must_use]
    pub fn plan(mut self, plan: &'a str) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Units that the request takes; multiplied by a rule's own cost. 0 takes
    /// nothing.
    #[inline]
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// What happens where no tenant is given.
    #[inline]
    #[must_use]
    pub fn on_missing_tenant(mut self, choice: MissingTenant) -> Self {
        self.missing_tenant = choice;
        self
    }

    /// The longest that the request can wait: what is left of its own
    /// deadline. Caps what its rules, the layer and the caller allow.
    #[inline]
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// No rule applies to the request.
    #[inline]
    #[must_use]
    pub fn exempt(mut self) -> Self {
        self.exempt = true;
        self
    }

    /// The request's path.
    #[inline]
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// How long the request can wait at the most.
    pub(crate) fn longest_wait(&self) -> Duration {
        let deadline = self.extensions.and_then(Extensions::get::<Deadline>).map(Deadline::remaining);
        let timeout = self.headers.and_then(grpc::timeout);
        deadline.into_iter().chain(timeout).fold(self.max_wait, Duration::min)
    }

    pub(crate) fn plan_name(&self) -> Option<&str> {
        self.plan.or_else(|| self.tenant.as_ref()?.plan.as_deref())
    }
}
