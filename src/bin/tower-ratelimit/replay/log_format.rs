//! From a line of a log to the request that it tells of: [`LogFormat`] and [`Record`].
//!
//! It decides nothing. Invariant: a line either is a whole record, or has a reason why not.

use std::sync::Arc;

use clap::ValueEnum;
use tower_ratelimit::Descriptor;

use super::{
    super::tenant::{identified, pair},
    json, moment,
    pattern::Pattern,
};

/// The form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// The Common Log Format of Apache and others
    Common,
    /// The Combined Log Format: the default of nginx, and of many others
    Combined,
    /// Envoy's default format
    Envoy,
    /// An object in each line, whose members `--field` names
    Json,
}

const COMMON: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";
const ENVOY: &str = "[$time_iso8601] \"$request\" $status $response_flags $bytes_received $bytes_sent $duration $upstream_service_time \"$http_x_forwarded_for\" \"$http_user_agent\" \"$http_x_request_id\" \"$http_host\" \"$upstream_host\"";

/// How the lines are written, and which of their fields say who a request is from.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LogArguments {
    /// The form of the lines
    #[arg(long, value_enum, default_value = "combined")]
    format: Preset,
    /// The form of the lines as in nginx's `log_format`, such as `$remote_addr [$time_local] "$request" $status`
    #[arg(long, value_name = "PATTERN", conflicts_with = "format")]
    log_format: Option<String>,
    /// The name of a member in JSON lines, such as `time=ts`: of time, method, path, request or status
    #[arg(long = "field", value_name = "NAME=MEMBER", value_parser = pair)]
    members: Vec<(String, String)>,
    /// The field that has the tenant, such as `http_x_api_key` [default: the address]
    #[arg(long, value_name = "FIELD")]
    tenant: Option<String>,
    /// The field that has the tenant's plan
    #[arg(long, value_name = "FIELD")]
    plan: Option<String>,
    /// The field that has a key of the request, such as `ip=remote_addr`
    #[arg(long = "key", value_name = "NAME=FIELD", value_parser = pair)]
    keys: Vec<(String, String)>,
}

/// How to read a log.
#[derive(Clone, Debug)]
pub(super) struct LogFormat {
    /// `None` for JSON.
    pattern: Option<Pattern>,
    /// The fields that are read. The slots below are indexes of them.
    names: Vec<String>,
    time: usize,
    /// The request line, or the method and the path.
    request: Result<usize, (usize, usize)>,
    status: Option<usize>,
    tenant: usize,
    plan: Option<usize>,
    keys: Vec<(Arc<str>, usize)>,
}

/// A request in a log.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Nanoseconds since the Unix epoch.
    pub(super) time: u64,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) status: Option<u16>,
    pub(super) tenant: Option<String>,
    pub(super) plan: Option<String>,
    pub(super) keys: Vec<(Arc<str>, String)>,
}

impl LogFormat {
    pub(super) fn new(arguments: &LogArguments) -> Result<Self, String> {
        match (&arguments.log_format, arguments.format) {
            (Some(pattern), _) => Self::pattern(pattern, "remote_addr", arguments),
            (None, Preset::Common) => Self::pattern(COMMON, "remote_addr", arguments),
            (None, Preset::Combined) => Self::pattern(COMBINED, "remote_addr", arguments),
            (None, Preset::Envoy) => Self::pattern(ENVOY, "http_x_forwarded_for", arguments),
            (None, Preset::Json) => Ok(Self::json(arguments)),
        }
    }

    /// Lines as in nginx's `log_format`.
    fn pattern(text: &str, tenant: &str, arguments: &LogArguments) -> Result<Self, String> {
        let has = |name: &&str| text.contains(&format!("${name}")) || text.contains(&format!("${{{name}}}"));
        let first = |names: &[&'static str]| {
            let missing = || format!("the log's lines need a field `${}`", names.join("` or `$"));
            names.iter().copied().find(has).ok_or_else(missing)
        };
        let mut format = Self::empty();
        format.time = format.slot(first(&["time_iso8601", "msec", "time_local"])?);
        format.request = match first(&["request_method"]) {
            Ok(method) => {
                let path = first(&["request_uri", "uri"])?;
                Err((format.slot(method), format.slot(path)))
            }
            Err(_) => Ok(format.slot(first(&["request"])?)),
        };
        format.status = first(&["status"]).ok().map(|status| format.slot(status));
        format.who(tenant, arguments);
        format.pattern = Some(Pattern::new(text, &format.names)?);
        Ok(format)
    }

    fn json(arguments: &LogArguments) -> Self {
        let named =
            |wanted: &str| arguments.members.iter().find(|(name, _)| name == wanted).map(|(_, member)| &**member);
        let mut format = Self::empty();
        format.time = format.slot(named("time").unwrap_or("time"));
        format.request = match named("request") {
            Some(request) => Ok(format.slot(request)),
            None => {
                Err((format.slot(named("method").unwrap_or("method")), format.slot(named("path").unwrap_or("path"))))
            }
        };
        format.status = Some(format.slot(named("status").unwrap_or("status")));
        format.who("remote_addr", arguments);
        format
    }

    fn empty() -> Self {
        let (names, keys) = (Vec::new(), Vec::new());
        Self { pattern: None, names, time: 0, request: Ok(0), status: None, tenant: 0, plan: None, keys }
    }

    /// The slots of those by whom requests are counted.
    fn who(&mut self, tenant: &str, arguments: &LogArguments) {
        self.tenant = self.slot(arguments.tenant.as_deref().unwrap_or(tenant));
        self.plan = arguments.plan.as_ref().map(|plan| self.slot(plan));
        self.keys = arguments.keys.iter().map(|(name, field)| (name.as_str().into(), self.slot(field))).collect();
    }

    /// The field that has the tenant.
    pub(super) fn tenant_field(&self) -> &str {
        &self.names[self.tenant]
    }

    fn slot(&mut self, name: &str) -> usize {
        let name = name.trim_start_matches('$');
        self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    /// The request in a line, or why there is none.
    pub(super) fn read(&self, line: &str) -> Result<Record, String> {
        let mut slots = vec![None; self.names.len()];
        match &self.pattern {
            Some(pattern) => pattern.read(line, &mut slots)?,
            None => json::read(line, &self.names, &mut slots)?,
        }
        let missing = |slot: usize| format!("`{}` is missing", self.names[slot]);
        let time = slots[self.time].as_deref().ok_or_else(|| missing(self.time))?;
        let time = moment::parse(time).ok_or_else(|| format!("`{}` is no time: {time}", self.names[self.time]))?;
        let known = |slot: usize| slots[slot].as_deref().filter(|value| !value.is_empty() && *value != "-");
        let (method, target) = match self.request {
            Ok(line) => request_line(known(line).ok_or_else(|| missing(line))?)?,
            Err((method, path)) => {
                (known(method).ok_or_else(|| missing(method))?, known(path).ok_or_else(|| missing(path))?)
            }
        };
        let keys = self.keys.iter().filter_map(|(name, slot)| Some((Arc::clone(name), known(*slot)?.to_owned())));
        Ok(Record {
            time,
            path: path(target)?.to_owned(),
            method: method.to_owned(),
            status: self.status.and_then(|status| slots[status].as_deref()?.parse().ok()),
            tenant: known(self.tenant).map(str::to_owned),
            plan: self.plan.and_then(known).map(str::to_owned),
            keys: keys.collect(),
        })
    }
}

/// The method and the target of `GET /search?q=1 HTTP/1.1`.
fn request_line(line: &str) -> Result<(&str, &str), String> {
    let is_method = |method: &str| method.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    let split = line.split_once(' ').filter(|(method, _)| !method.is_empty() && is_method(method));
    let (method, rest) = split.ok_or_else(|| format!("no request line: {line}"))?;
    let target = rest.rsplit_once(' ').filter(|(_, version)| version.starts_with("HTTP/"));
    Ok((method, target.map_or(rest, |(target, _)| target)))
}

/// The path of a request's target: without the query, and without the origin that a client of
/// a proxy sends.
fn path(target: &str) -> Result<&str, String> {
    let start = match target.starts_with('/') {
        true => 0,
        false => target.find("://").and_then(|scheme| Some(scheme + 3 + target[scheme + 3..].find('/')?)).unwrap_or(0),
    };
    let path = &target[start..];
    if !path.starts_with('/') && target != "*" {
        return Err(format!("no path: {target}"));
    }
    Ok(path.split(['?', '#']).next().unwrap_or(path))
}

impl Record {
    pub(super) fn descriptor(&self) -> Descriptor<'_> {
        let mut descriptor = Descriptor::new(&*self.path).method(&self.method);
        if let Some(tenant) = &self.tenant {
            descriptor = descriptor.tenant(identified(tenant));
        }
        if let Some(plan) = &self.plan {
            descriptor = descriptor.plan(plan);
        }
        self.keys.iter().fold(descriptor, |descriptor, (name, value)| descriptor.key(name, identified(value)))
    }
}
