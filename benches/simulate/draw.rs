//! Draws what a fleet admitted in each second, as an SVG.

use std::fmt::{self, Write as _};

use super::fleet::Window;

const WIDTH: f64 = 600.0;
const LEFT: f64 = 40.0;

/// One way to share a limit.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) windows: Vec<Window>,
}

/// What was admitted in a window.
pub(crate) type Admitted = fn(&Window) -> u64;

/// Above, what the fleet admitted, and in red what was over the limit; below, what an
/// instance did.
pub(crate) fn fleet(title: &str, windows: &[Window], admitted: Admitted) -> Result<String, fmt::Error> {
    let most = windows.iter().map(|window| window.most).max().unwrap_or(1).max(1) as f64;
    let mut svg = start(title, 320)?;
    bars(&mut svg, windows, admitted, (190.0, 150.0))?;
    for (x, width, window) in places(windows) {
        let each = |units: u64| units as f64 / most * 60.0;
        let height = (each(window.most) - each(window.least)).max(1.0);
        bar(&mut svg, (x, width), 290.0 - each(window.least), height, "#7a9cc6")?;
    }
    let (first, last) = (windows.first().map_or(0, |window| window.limit), windows.len());
    writeln!(
        svg,
        r#"<text x="40" y="205">admitted by the fleet in each second; the line is the limit, {first} at first</text>"#
    )?;
    writeln!(svg, r#"<text x="40" y="306">an instance, from the least to the most; {most:.0} at the top</text>"#)?;
    writeln!(svg, r#"<text x="596" y="306">{last} seconds</text>"#)?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// What the fleet admitted by each of several ways to share one limit.
pub(crate) fn comparison(title: &str, rows: &[Row]) -> Result<String, fmt::Error> {
    const EACH: f64 = 110.0;
    let mut svg = start(title, 40 + (rows.len() * EACH as usize))?;
    for (index, row) in rows.iter().enumerate() {
        let base = 130.0 + index as f64 * EACH;
        bars(&mut svg, &row.windows, |window| window.admitted, (base, 80.0))?;
        writeln!(svg, r#"<text x="40" y="{:.0}">{}</text>"#, base + 14.0, row.name)?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn start(title: &str, height: usize) -> Result<String, fmt::Error> {
    let mut svg = String::new();
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{height}" font-family="sans-serif" font-size="12">"#
    )?;
    writeln!(svg, r#"<rect width="680" height="{height}" fill="white"/>"#)?;
    writeln!(svg, r#"<text x="40" y="20" font-weight="bold">{title}</text>"#)?;
    Ok(svg)
}

/// Where each window is: its start and its width.
fn places(windows: &[Window]) -> impl Iterator<Item = (f64, f64, &Window)> {
    let width = WIDTH / windows.len().max(1) as f64;
    windows.iter().enumerate().map(move |(number, window)| (LEFT + number as f64 * width, width - 1.0, window))
}

/// What was admitted in each window, with the limit as a line; over the limit in red.
/// A path for each: a shape for each window makes large files.
fn bars(svg: &mut String, windows: &[Window], admitted: Admitted, (base, top): (f64, f64)) -> fmt::Result {
    let most = windows.iter().map(|window| admitted(window).max(window.limit)).max().unwrap_or(1).max(1) as f64;
    let y = |units: u64| base - units as f64 / most * top;
    let (mut within, mut over) = (format!("M{LEFT} {base}"), String::new());
    let (mut limit, mut line) = (None, String::new());
    for (x, width, window) in places(windows) {
        let (all, end) = (admitted(window), x + width + 1.0);
        write!(within, "V{:.1}H{end:.1}", y(all.min(window.limit)))?;
        if all > window.limit {
            write!(over, "M{x:.1} {:.1}V{:.1}H{end:.1}V{:.1}", y(window.limit), y(all), y(window.limit))?;
        }
        match limit.replace(window.limit) {
            Some(before) if before == window.limit => {}
            Some(_) => write!(line, "H{x:.1}V{:.1}", y(window.limit))?,
            None => write!(line, "M{x:.1} {:.1}", y(window.limit))?,
        }
    }
    writeln!(svg, r##"<path d="{within}V{base}z" fill="#3b6ea5"/>"##)?;
    writeln!(svg, r##"<path d="{over}" fill="#c0392b"/>"##)?;
    writeln!(svg, r##"<path d="{line}H{}" fill="none" stroke="#222222"/>"##, LEFT + WIDTH)
}

fn bar(svg: &mut String, (x, width): (f64, f64), base: f64, height: f64, color: &str) -> fmt::Result {
    let y = base - height;
    writeln!(svg, r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{color}"/>"#)
}
