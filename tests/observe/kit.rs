//! The descriptions of all metrics, and what operators load: `docs/grafana.json`
//! and `docs/alerts.yaml` use only metrics that there are.

use std::{collections::BTreeMap, fs, path::Path, process::Command, sync::Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use regex::Regex;
use serde_json::Value;
use tower_ratelimit::{Quota, RateLimiter};

/// The kind, unit and text of each metric.
type Described = BTreeMap<String, (&'static str, Option<Unit>, String)>;

#[derive(Default)]
struct Descriptions(Mutex<Described>);

impl Descriptions {
    fn add(&self, kind: &'static str, name: &KeyName, unit: Option<Unit>, text: &SharedString) {
        self.0.lock().unwrap().insert(name.as_str().into(), (kind, unit, text.to_string()));
    }
}

impl Recorder for Descriptions {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.add("counter", &name, unit, &text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.add("gauge", &name, unit, &text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.add("histogram", &name, unit, &text);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// What building a limiter describes.
fn described() -> Described {
    let recorder = Descriptions::default();
    metrics::with_local_recorder(&recorder, || RateLimiter::new(Quota::per_second(1)).map(drop)).unwrap();
    recorder.0.into_inner().unwrap()
}

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// All source files below a folder.
fn sources(folder: &Path, found: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_metric_in_the_code_is_described_with_its_kind() {
    let mut code = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut code);
    let reported = Regex::new(r#"metrics::(counter|gauge|histogram)!\("(rate_limiting\.[a-z_.]+)""#).unwrap();
    let mut kinds: BTreeMap<String, String> = BTreeMap::new();
    for found in reported.captures_iter(&code) {
        kinds.insert(found[2].into(), found[1].into());
    }
    let gauges = Regex::new(r#"Gauge::new\("(rate_limiting\.[a-z_.]+)"\)"#).unwrap();
    kinds.extend(gauges.captures_iter(&code).map(|found| (found[1].into(), "gauge".into())));
    let described = described();
    let described_kinds: BTreeMap<_, _> =
        described.iter().map(|(name, (kind, ..))| (name.clone(), (*kind).to_owned())).collect();
    assert_eq!(described_kinds, kinds);
    for (name, (_, unit, text)) in described {
        let seconds = ["duration", "time_in_queue", "staleness", "concurrency.baseline", "view_age"];
        let in_seconds = seconds.iter().any(|end| name.ends_with(end));
        assert_eq!(unit, Some(if in_seconds { Unit::Seconds } else { Unit::Count }), "{name}");
        assert!(text.ends_with('.') && text.len() > 10, "{name}: {text}");
    }
}

/// The names that the exporter for Prometheus gives to what is described.
fn exported() -> Vec<String> {
    let mut names = Vec::new();
    for (name, (kind, ..)) in described() {
        let name = name.replace('.', "_");
        if kind == "histogram" {
            names.extend(["bucket", "sum", "count"].map(|suffix| format!("{name}_{suffix}")));
        }
        names.push(name);
    }
    names
}

/// The metrics that an expression uses.
fn used(expression: &str) -> Vec<String> {
    let names = Regex::new(r"rate_limiting_[a-z_]+").unwrap();
    names.find_iter(expression).map(|name| name.as_str().to_owned()).collect()
}

#[test]
fn the_dashboard_uses_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(&file("docs/grafana.json")).unwrap();
    let exported = exported();
    let mut shown = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let names = used(target["expr"].as_str().unwrap());
            assert!(!names.is_empty(), "{target}");
            shown.extend(names);
        }
    }
    shown.extend(used(&dashboard["templating"].to_string()));
    let unknown: Vec<_> = shown.iter().filter(|name| !exported.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    // And each metric is on it.
    for (name, _) in described() {
        let name = name.replace('.', "_");
        assert!(shown.iter().any(|shown| shown.starts_with(&name)), "{name} is not on the dashboard");
    }
}

/// Instances of several services may have the same name.
#[test]
fn the_legends_name_the_job_of_an_instance() {
    let dashboard: Value = serde_json::from_str(&file("docs/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let legends = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let legends: Vec<&str> = legends.filter_map(|target| target["legendFormat"].as_str()).collect();
    let of_instances: Vec<_> = legends.iter().filter(|legend| legend.contains("{{instance}}")).collect();
    assert!(!of_instances.is_empty());
    assert!(of_instances.iter().all(|legend| legend.contains("{{job}}")), "{of_instances:?}");
}

#[cfg(feature = "serde")]
#[test]
fn the_alerts_use_metrics_that_there_are() {
    let alerts: Value = serde_saphyr::from_str(&file("docs/alerts.yaml")).unwrap();
    let exported = exported();
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 5);
    for rule in rules {
        assert!(rule["alert"].is_string() && rule["annotations"]["summary"].is_string(), "{rule}");
        let names = used(rule["expr"].as_str().unwrap());
        assert!(!names.is_empty() && names.iter().all(|name| exported.contains(name)), "{rule}");
    }
}

/// Where it is installed: the package `prometheus` has it.
#[test]
fn promtool_accepts_the_alerts() {
    let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/alerts.yaml");
    match Command::new("promtool").args(["check", "rules"]).arg(alerts).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => eprintln!("skipped: promtool: {error}"),
    }
}
