//! `explain`: which rules of a policy apply to one request, and why the others do not.
//!
//! It asks the library on counters that nothing has used. Invariant: nothing is charged.

use std::process::ExitCode;

use http::{HeaderMap, HeaderName, HeaderValue};
use tower_ratelimit::{Descriptor, Priority, RateLimiter, tenant::named_or_address};

use super::{
    output::{Failure, print, print_json},
    policy_file::PolicyFile,
};

/// Says which rules apply to a request, why the others do not, and where its tiers come from
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    policy: PolicyFile,
    /// The request's method
    #[arg(long, default_value = "GET")]
    method: String,
    /// The request's path
    #[arg(long)]
    path: String,
    /// The route that the router matched, for rules with `routes`
    #[arg(long)]
    route: Option<String>,
    /// The tenant. An IP address is a tenant that is identified by its address
    #[arg(long)]
    tenant: Option<String>,
    /// The tenant's plan
    #[arg(long)]
    plan: Option<String>,
    /// Another key of the request, such as `ip=192.0.2.7`; may be given several times
    #[arg(long = "key", value_name = "NAME=VALUE", value_parser = pair)]
    keys: Vec<(String, String)>,
    /// A header of the request, for rules with `headers`; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// How much the request matters: low, normal, high or critical
    #[arg(long)]
    priority: Option<Priority>,
    /// The request's cost in units
    #[arg(long, default_value_t = 1)]
    cost: u64,
    /// Prints JSON instead of lines
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let policy = arguments.policy.read()?;
    let invalid =
        |error: &dyn ToString| Failure::invalid(format!("{}: {}", arguments.policy.name(), error.to_string()));
    let limiter = RateLimiter::new(policy).map_err(|error| invalid(&error))?;
    let headers = arguments.headers.iter().cloned().collect::<HeaderMap>();
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| invalid(&error))?;
    let explanation = runtime.block_on(limiter.explain(&arguments.descriptor().headers(&headers)));
    if arguments.json { print_json(&explanation) } else { print(&explanation.to_string()) }
}

impl Arguments {
    fn descriptor(&self) -> Descriptor<'_> {
        let path = self.path.split('?').next().unwrap_or_default();
        let mut descriptor = Descriptor::new(path).method(&self.method).cost(self.cost);
        if let Some(route) = &self.route {
            descriptor = descriptor.route(route);
        }
        if let Some(tenant) = &self.tenant {
            descriptor = descriptor.tenant(named_or_address(tenant));
        }
        if let Some(plan) = &self.plan {
            descriptor = descriptor.plan(plan);
        }
        if let Some(priority) = self.priority {
            descriptor = descriptor.priority(priority);
        }
        self.keys.iter().fold(descriptor, |descriptor, (name, value)| descriptor.key(name, named_or_address(value)))
    }
}

/// An argument such as `ip=192.0.2.7`.
pub(crate) fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

/// An argument such as `mcp-method: tools/call`.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), &'static str> {
    let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE")?;
    let name = name.parse().map_err(|_| "is not the name of a header")?;
    Ok((name, value.trim().parse().map_err(|_| "is not the value of a header")?))
}
