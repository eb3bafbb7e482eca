//! The chart: four panels of horizontal bars on logarithmic scales, with a background for light and for dark pages.

use std::fmt::Write;
use std::time::Duration;

use super::units::{rate, time};
use crate::contenders::{COFFERDAM, COFFERDAM_TLS, COFFERDAM_WEB_SOCKET, DIRECT, SOCAT};
use crate::rounds::ContenderResult;

pub(super) fn svg(results: &[ContenderResult]) -> String {
    let panels = [
        Panel {
            title: "One small call, p50",
            better: "shorter is better",
            value: |result| result.best_small_calls().map(|small| small.median.as_secs_f64()),
            label: seconds_label,
        },
        Panel {
            title: "Calls per second, 32 in flight",
            better: "longer is better",
            value: ContenderResult::calls_per_second,
            label: rate,
        },
        Panel {
            title: "A 1 MiB result, p50",
            better: "shorter is better",
            value: |result| result.best_large_call().map(|large| large.as_secs_f64()),
            label: seconds_label,
        },
        Panel {
            title: "Start to tools/list",
            better: "shorter is better",
            value: |result| result.best_start_time().map(|start| start.as_secs_f64()),
            label: seconds_label,
        },
    ];
    let panel_height = HEADER + ROW * results.len() as f64 + FOOTER;
    let (width, height) = (2.0 * PANEL, 2.0 * panel_height + MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-labelledby=\"title\">\n<title id=\"title\">Cofferdam beside the alternatives, logarithmic \
         scales</title>\n<style>{STYLE}</style>\n<rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n"
    );
    for (number, panel) in panels.iter().enumerate() {
        let (column, row) = ((number % 2) as f64, (number / 2) as f64);
        let place = (column * PANEL, MARGIN / 2.0 + row * panel_height);
        panel.draw(results, place, &mut out);
    }
    out.push_str("</svg>\n");
    out
}

struct Panel {
    title: &'static str,
    better: &'static str,
    value: fn(&ContenderResult) -> Option<f64>,
    label: fn(f64) -> String,
}

const PANEL: f64 = 470.0;
const MARGIN: f64 = 16.0;
const HEADER: f64 = 46.0;
const ROW: f64 = 26.0;
const FOOTER: f64 = 34.0;
const BAR_LEFT: f64 = 200.0;
const BAR_WIDTH: f64 = 176.0;

const STYLE: &str = "
text{font-family:system-ui,'Segoe UI','DejaVu Sans',sans-serif;font-size:12px;fill:#1f2328}
.head{font-footprint:600;font-size:14px}
.quiet{fill:#59636e;font-size:11px}
.page{fill:#ffffff;stroke:#d1d9e0}
.grid{stroke:#d1d9e0}
.bar{fill:#afb8c1}
.plain{fill:#6e7781}
.ours{fill:#0969da}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}
.quiet{fill:#9198a1}
.page{fill:#0d1117;stroke:#3d444d}
.grid{stroke:#3d444d}
.bar{fill:#545d68}
.plain{fill:#8b949e}
.ours{fill:#4493f8}
}
";

impl Panel {
    fn draw(&self, results: &[ContenderResult], (left, top): (f64, f64), out: &mut String) {
        let values: Vec<f64> = results.iter().filter_map(|result| (self.value)(result)).collect();
        let scale = Scale::over(&values);
        let bottom = HEADER + ROW * results.len() as f64;
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<g transform=\"translate({left} {top})\">\n<text class=\"head\" x=\"{MARGIN}\" y=\"20\">{}</text>\n\
             <text class=\"quiet\" x=\"{MARGIN}\" y=\"36\">{}, logarithmic</text>\n",
            self.title, self.better
        );
        for (number, decade) in scale.decades().enumerate() {
            let x = BAR_LEFT + scale.length(decade);
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{HEADER}\" y2=\"{bottom}\"/>"
            );
            // With many decades only every second one has a label, so that labels do not overlap.
            if scale.count() <= 4 || number.is_multiple_of(2) {
                let y = bottom + 14.0;
                let label = (self.label)(decade).replace(".00", "").replace(".0", "");
                let _ = writeln!(
                    out,
                    "<text class=\"quiet\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{y}\">{label}</text>"
                );
            }
        }
        for (number, result) in results.iter().enumerate() {
            let y = HEADER + ROW * number as f64;
            self.bar(result, &scale, y, out);
        }
        out.push_str("</g>\n");
    }

    fn bar(&self, result: &ContenderResult, scale: &Scale, y: f64, out: &mut String) {
        let (name_x, text_y) = (BAR_LEFT - 8.0, y + 17.0);
        let _ =
            writeln!(out, "<text text-anchor=\"end\" x=\"{name_x}\" y=\"{text_y}\">{}</text>", result.name);
        let Some(value) = (self.value)(result) else {
            let (x, word) =
                (BAR_LEFT + 6.0, if result.failure.is_some() { "failed" } else { "not measured" });
            let _ = writeln!(out, "<text class=\"quiet\" x=\"{x}\" y=\"{text_y}\">{word}</text>");
            return;
        };
        let class = match result.name {
            COFFERDAM | COFFERDAM_TLS | COFFERDAM_WEB_SOCKET => "ours",
            DIRECT | SOCAT => "plain",
            _ => "bar",
        };
        let (length, bar_y, height) = (scale.length(value).max(1.0), y + 4.0, ROW - 8.0);
        let (label_x, label) = (BAR_LEFT + length + 6.0, (self.label)(value));
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{BAR_LEFT}\" y=\"{bar_y}\" width=\"{length:.1}\" height=\"{height}\" rx=\"2\"/>\n\
             <text x=\"{label_x:.1}\" y=\"{text_y}\">{label}</text>"
        );
    }
}

/// A logarithmic scale of whole decades, from below the smallest value to above the largest.
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn over(values: &[f64]) -> Self {
        let exponent = |value: &f64| value.max(1e-9).log10();
        let low = values.iter().map(exponent).reduce(f64::min).unwrap_or(0.0).floor() as i32;
        let high = values.iter().map(exponent).reduce(f64::max).unwrap_or(1.0).ceil() as i32;
        Self { low, high: high.max(low + 1) }
    }

    fn count(&self) -> i32 {
        self.high - self.low + 1
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.low..=self.high).map(|exponent| 10_f64.powi(exponent))
    }

    fn length(&self, value: f64) -> f64 {
        let share = (value.max(1e-9).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        BAR_WIDTH * share.clamp(0.0, 1.0)
    }
}

fn seconds_label(seconds: f64) -> String {
    time(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_covers_its_values_in_whole_decades() {
        let scale = Scale::over(&[0.000_02, 0.3]);
        assert_eq!((scale.low, scale.high), (-5, 0));
        assert_eq!(scale.length(1e-5), 0.0);
        assert_eq!(scale.length(1.0), BAR_WIDTH);
        assert_eq!(Scale::over(&[]).count(), 2);
    }
}
