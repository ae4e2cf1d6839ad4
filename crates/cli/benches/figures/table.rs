//! The table that is printed, line by line as figures come in.

use std::time::Duration;

use crate::sample::Samples;

/// What a median may be at most: so many times the other one's, and so much more.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub times: f64,
    pub more: Duration,
}

impl Bound {
    pub const fn times(times: f64) -> Self {
        Self {
            times,
            more: Duration::ZERO,
        }
    }
}

/// Whom a figure is held against.
#[derive(Clone, Copy, Debug)]
pub struct Against<'a> {
    pub name: &'a str,
    pub samples: &'a Samples,
    pub bound: Bound,
}

/// What was printed so far, as far as it matters at the end.
#[derive(Debug, Default)]
pub struct Table {
    over: bool,
}

impl Table {
    pub fn begin(&mut self, figure: &str) {
        println!();
        println!(
            "{figure:<34} {:>9} {:>9} {:>9}",
            "median ms", "min ms", "p95 ms"
        );
    }

    /// Times without a bound.
    pub fn times(&mut self, name: &str, samples: &Samples) {
        println!("{}", line(name, samples));
    }

    /// Times held against those of another one, by their medians.
    pub fn held(&mut self, name: &str, samples: &Samples, against: Against<'_>) {
        let Against {
            name: other,
            samples: others,
            bound,
        } = against;
        let limit = others.median().mul_f64(bound.times) + bound.more;
        let more = match bound.more {
            Duration::ZERO => String::new(),
            more => format!(" + {} ms", more.as_millis()),
        };
        println!(
            "{}   {:.2} × {other}, bound {} ×{more}: {}",
            line(name, samples),
            samples.median().as_secs_f64() / others.median().as_secs_f64(),
            bound.times,
            self.judge(samples.median() <= limit),
        );
    }

    /// Something that holds or does not.
    pub fn holds(&mut self, what: &str, holds: bool) {
        println!("  {what}: {}", self.judge(holds));
    }

    /// Anything else worth knowing.
    pub fn note(&mut self, text: &str) {
        println!("  {text}");
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    fn judge(&mut self, holds: bool) -> &'static str {
        self.over |= !holds;
        if holds { "within" } else { "OVER" }
    }
}

fn line(name: &str, samples: &Samples) -> String {
    format!(
        "  {name:<32} {:>9.3} {:>9.3} {:>9.3}",
        milliseconds(samples.median()),
        milliseconds(samples.min()),
        milliseconds(samples.percentile(95))
    )
}

pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
