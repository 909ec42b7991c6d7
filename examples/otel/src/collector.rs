//! A collector's stub: takes one export, and answers it.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::mpsc::{self, Receiver},
    thread,
};

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{Metric, metric::Data, number_data_point},
};
use prost::Message;

/// Its URL, and the lines of the first export.
pub(crate) fn start() -> io::Result<(String, Receiver<Vec<String>>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/v1/metrics", listener.local_addr()?);
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        let export = take(&listener);
        if let Ok(export) = export {
            // Fails if its receiver is gone.
            let _ = sender.send(lines(&export));
        }
    });
    Ok((url, received))
}

fn take(listener: &TcpListener) -> io::Result<ExportMetricsServiceRequest> {
    let mut stream = BufReader::new(listener.accept()?.0);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let answer =
        "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.get_mut().write_all(answer.as_bytes())?;
    ExportMetricsServiceRequest::decode(body.as_slice()).map_err(io::Error::other)
}

fn lines(export: &ExportMetricsServiceRequest) -> Vec<String> {
    let scopes = export.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
    let mut lines: Vec<_> = scopes.flat_map(|scope| &scope.metrics).flat_map(points).collect();
    lines.sort();
    lines
}

fn points(metric: &Metric) -> Vec<String> {
    let points = match &metric.data {
        Some(Data::Sum(sum)) => &sum.data_points,
        Some(Data::Gauge(gauge)) => &gauge.data_points,
        _ => return vec![metric.name.clone()],
    };
    let value = |value: &Option<_>| match value {
        Some(number_data_point::Value::AsInt(value)) => value.to_string(),
        Some(number_data_point::Value::AsDouble(value)) => value.to_string(),
        None => String::new(),
    };
    let line = |labels: &[KeyValue], value: String| {
        let mut labels: Vec<_> = labels.iter().filter_map(label).collect();
        labels.sort();
        format!("{}{{{}}} {value} ({})", metric.name, labels.join(", "), metric.description)
    };
    points.iter().map(|point| line(&point.attributes, value(&point.value))).collect()
}

fn label(label: &KeyValue) -> Option<String> {
    match label.value.as_ref()?.value.as_ref()? {
        Value::StringValue(value) => Some(format!("{}={value}", label.key)),
        _ => None,
    }
}
