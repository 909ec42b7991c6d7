//! A bar chart in SVG: what each layer adds to a request.

use std::fmt::Write;

/// The width of the longest bar, in pixels.
const LONGEST: f64 = 380.0;

/// The length from which on a bar is cut off, in medians: one slow layer would
/// otherwise flatten all others.
const CUT_OFF: f64 = 4.0;

/// Draws named costs, in their order.
pub fn draw(title: &str, costs: &[(String, f64)]) -> String {
    let mut sorted: Vec<f64> = costs.iter().map(|(_, cost)| *cost).collect();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(1.0);
    let longest = sorted.last().copied().unwrap_or(1.0).min(CUT_OFF * median).max(1.0);
    let height = 50 + 24 * costs.len();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"720\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"22\" font-weight=\"bold\">{title}</text>\n"
    );
    for (row, (name, cost)) in costs.iter().enumerate() {
        let (y, is_cut) = (38 + 24 * row, *cost > longest);
        let width = LONGEST * cost.clamp(0.0, longest) / longest;
        let color = if name.starts_with("tower-ratelimit") { "#3b6ea5" } else { "#b0b8c1" };
        let more = if is_cut { " (cut off)" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"210\" y=\"{text}\" text-anchor=\"end\">{name}</text>\n\
             <rect x=\"220\" y=\"{y}\" width=\"{width:.1}\" height=\"16\" fill=\"{color}\"/>\n\
             <text x=\"{end:.1}\" y=\"{text}\">{cost:.0}{more}</text>",
            text = y + 12,
            end = 226.0 + width,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Costs in lines of `name,cost`; `None` if a line is none.
pub fn parse(lines: &str) -> Option<Vec<(String, f64)>> {
    let cost = |line: &str| {
        let (name, cost) = line.rsplit_once(',')?;
        Some((name.to_owned(), cost.trim().parse().ok()?))
    };
    lines.lines().map(cost).collect()
}
