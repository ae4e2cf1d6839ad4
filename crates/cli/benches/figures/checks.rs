//! What validation costs beyond the time of the checks themselves.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::place::Place;
use crate::sample::Samples;
use crate::table::{Against, Bound, Table};

/// BOUND: enough that one slow round of a busy machine does not move a median.
const ROUNDS: usize = 20;

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    for checks in [1, 3] {
        let (mut added, mut starts) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let began = Instant::now();
            let (mut sandbox, layer) = place.sandbox()?;
            sandbox.end()?;
            starts.push(began.elapsed());
            layer.remove()?;
            added.push(once(place, checks, round)?);
        }
        let name = format!("{checks} checks, before and after: added");
        let start = Samples::new(starts);
        let against = Against {
            name: "one sandbox, started, proven and ended",
            samples: &start,
            bound: Bound::times(1.0),
        };
        table.held(&name, &Samples::new(added), against);
    }
    Ok(())
}

/// The time of a validation without that of its checks. The folder is another one each time, so that
/// nothing is known already.
fn once(place: &Place, checks: usize, round: usize) -> Result<Duration> {
    fs::write(place.folder().join("round"), format!("{checks} {round}\n"))?;
    let mut words = vec!["run".to_owned(), "--json".to_owned()];
    for check in 0..checks {
        words.extend(["--check".to_owned(), format!("sleep 0.1; : {check}")]);
    }
    words.extend(["--", "sh", "-c", "echo more > more"].map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = place.program_at(place.home(), &words).output()?;
    let result: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let reports = result["checks"]["reports"]
        .as_array()
        .context("no checks")?;
    let executions = reports
        .iter()
        .flat_map(|report| report["executions"].as_array().into_iter().flatten());
    let own: u64 = executions
        .filter_map(|execution| execution["ran"]["duration_ms"].as_u64())
        .sum();
    let all = result["checks"]["duration_ms"]
        .as_u64()
        .context("no time")?;
    Ok(Duration::from_millis(all.saturating_sub(own)))
}
