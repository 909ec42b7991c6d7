//! Medians with their spread, and Markdown tables.

use std::fmt;

/// The median of several rounds, with the lowest and highest.
#[derive(Clone, Copy)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Self { min: sorted[0], median: sorted[sorted.len() / 2], max: sorted[sorted.len() - 1] }
    }
}

/// `96 (94..101)`
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, median, max } = *self;
        write!(f, "{} ({}..{})", figure(median), figure(min), figure(max))
    }
}

/// Formats three significant digits, or a whole number from 1,000 on.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// `2.3x`
pub fn times(ratio: f64) -> String {
    format!("{}x", figure(ratio))
}

/// A Markdown table: text is left-aligned, figures are right-aligned.
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(title: impl Into<String>, columns: [&str; N]) -> Self {
        Self { title: title.into(), columns: columns.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.columns.len(), "{}", self.title);
        self.rows.push(cells.into());
    }

    pub fn print(&self) {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.columns[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        println!("\n### {}\n", self.title);
        print_row(&self.columns, &widths);
        let rules = widths.iter().enumerate().map(|(column, &width)| match column {
            0 => format!("|{}", "-".repeat(width + 2)),
            _ => format!("|{}:", "-".repeat(width + 1)),
        });
        println!("{}|", rules.collect::<String>());
        for row in &self.rows {
            print_row(row, &widths);
        }
    }
}

fn print_row(cells: &[String], widths: &[usize]) {
    for (column, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        match column {
            0 => print!("| {cell:<width$} "),
            _ => print!("| {cell:>width$} "),
        }
    }
    println!("|");
}
