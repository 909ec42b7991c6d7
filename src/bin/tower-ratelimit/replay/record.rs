//! From a line of a log to the request that it describes: [`LogFormat`] and [`Record`].
//!
//! It decides nothing and reads no clock. Invariant: a line either is a whole record, or has a
//! reason why not; no text makes it panic, and a time before 1970 is none.

use std::{sync::Arc, time::UNIX_EPOCH};

use clap::ValueEnum;
use tower_ratelimit::{Descriptor, tenant::named_or_address};

use super::{
    super::command::pair,
    lines::{Pattern, read_json},
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
        let (text, tenant) = match (&arguments.log_format, arguments.format) {
            (Some(pattern), _) => (Some(&**pattern), "remote_addr"),
            (None, Preset::Common) => (Some(COMMON), "remote_addr"),
            (None, Preset::Combined) => (Some(COMBINED), "remote_addr"),
            (None, Preset::Envoy) => (Some(ENVOY), "http_x_forwarded_for"),
            (None, Preset::Json) => (None, "remote_addr"),
        };
        let member = |name: &str| arguments.members.iter().find(|(own, _)| own == name).map(|(_, member)| &**member);
        let has = |text: &str, name: &str| text.contains(&format!("${name}")) || text.contains(&format!("${{{name}}}"));
        // The member that `--field` names, or the first of these fields that the pattern has.
        let find = |name: &'static str, fields: &[&'static str]| match text {
            Some(text) => fields
                .iter()
                .copied()
                .find(|field| has(text, field))
                .ok_or_else(|| format!("the log's lines need a field `${}`", fields.join("` or `$"))),
            None => Ok(member(name).unwrap_or(name)),
        };
        let has_line = text.map_or_else(|| member("request").is_some(), |text| !has(text, "request_method"));
        let mut names: Vec<String> = Vec::new();
        let mut slot = |name: &str| {
            let name = name.trim_start_matches('$');
            names.iter().position(|known| known == name).unwrap_or_else(|| {
                names.push(name.to_owned());
                names.len() - 1
            })
        };
        let time = slot(find("time", &["time_iso8601", "msec", "time_local"])?);
        let request = match has_line {
            true => Ok(slot(find("request", &["request"])?)),
            false => {
                let method = slot(find("method", &["request_method"])?);
                Err((method, slot(find("path", &["request_uri", "uri"])?)))
            }
        };
        let status = find("status", &["status"]).ok().map(&mut slot);
        let tenant = slot(arguments.tenant.as_deref().unwrap_or(tenant));
        let plan = arguments.plan.as_deref().map(&mut slot);
        let keys = arguments.keys.iter().map(|(name, field)| (name.as_str().into(), slot(field))).collect();
        let pattern = text.map(|text| Pattern::new(text, &names)).transpose()?;
        Ok(Self { pattern, names, time, request, status, tenant, plan, keys })
    }

    /// The field that has the tenant.
    pub(super) fn tenant_field(&self) -> &str {
        &self.names[self.tenant]
    }

    /// The request in a line, or why there is none.
    pub(super) fn read(&self, line: &str) -> Result<Record, String> {
        let mut slots = vec![None; self.names.len()];
        match &self.pattern {
            Some(pattern) => pattern.read(line, &mut slots)?,
            None => read_json(line, &self.names, &mut slots)?,
        }
        let missing = |slot: usize| format!("`{}` is missing", self.names[slot]);
        let time = slots[self.time].as_deref().ok_or_else(|| missing(self.time))?;
        let time = instant(time).ok_or_else(|| format!("`{}` is no time: {time}", self.names[self.time]))?;
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
            descriptor = descriptor.tenant(named_or_address(tenant));
        }
        if let Some(plan) = &self.plan {
            descriptor = descriptor.plan(plan);
        }
        self.keys.iter().fold(descriptor, |descriptor, (name, value)| descriptor.key(name, named_or_address(value)))
    }
}

/// Nanoseconds since the Unix epoch of `10/Oct/2000:13:55:36 -0700`, of
/// `2000-10-10T13:55:36.5-07:00`, or of a number: of seconds, or by its size of smaller units.
fn instant(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    match (bytes.get(2), bytes.get(4)) {
        (Some(b'/'), _) => common_time(text),
        (_, Some(b'-')) => iso_time(text),
        _ => unix_time(text),
    }
}

const SECOND: u64 = 1_000_000_000;

fn common_time(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (day, month, year) = (text.get(..2)?, text.get(3..6)?, text.get(7..11)?);
    let month = 1 + MONTHS.iter().position(|name| *name == month)?;
    let (clock, zone) = text.get(12..).map(|rest| rest.split_once(' ').unwrap_or((rest, "Z")))?;
    local_time(&format!("{year}-{month:02}-{day}T{clock}"), zone)
}

fn iso_time(text: &str) -> Option<u64> {
    let time = text.get(11..)?;
    let zone = time.find(['Z', 'z', '+', '-']).map_or(text.len(), |zone| 11 + zone);
    let (local, zone) = text.split_at(zone);
    local_time(&local.replace(',', ".").replace('t', "T"), zone)
}

/// `local` is `2000-10-10T13:55:36` with or without a fraction, `zone` is `Z`, `-0700` or `+02:00`.
fn local_time(local: &str, zone: &str) -> Option<u64> {
    let local = humantime::parse_rfc3339_weak(local).ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(local.as_nanos()).ok()?.checked_add_signed(-offset(zone)? * SECOND as i64)
}

/// Seconds east of Greenwich.
fn offset(zone: &str) -> Option<i64> {
    let sign = match zone.as_bytes().first() {
        None | Some(b'Z' | b'z') => return Some(0),
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return None,
    };
    let zone = zone.get(1..)?;
    let (hours, minutes) = (digits(zone.get(..2)?)?, digits(zone.get(zone.len().checked_sub(2)?..)?)?);
    (hours < 24 && minutes < 60).then(|| sign * (hours * 3_600 + minutes * 60) as i64)
}

/// Seconds; from 100 billion on milliseconds, and so on by factors of a thousand: seconds
/// that large would be more than three thousand years away.
fn unix_time(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = digits(whole)?;
    let mut unit = SECOND;
    while unit > 1 && whole >= 100_000_000_000 * (SECOND / unit) {
        unit /= 1_000;
    }
    whole.checked_mul(unit)?.checked_add(nanos(fraction)? * unit / SECOND)
}

/// Digits after a point, in billionths.
fn nanos(fraction: &str) -> Option<u64> {
    let known = &fraction[..fraction.len().min(9)];
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(known.bytes().fold((0, SECOND / 10), |(sum, unit), digit| (sum + u64::from(digit - b'0') * unit, unit / 10)).0)
}

fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}
