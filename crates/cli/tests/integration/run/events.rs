//! `ringfence events`: what happened, in order, and as it happens.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::in_each_mode;

fn lines(text: &str) -> Result<Vec<Value>> {
    let parse = |line: &str| serde_json::from_str(line).context(line.to_owned());
    text.lines().map(parse).collect()
}

fn words(events: &[Value]) -> Vec<String> {
    let word = |event: &Value| {
        let step = event["detail"]["step"].as_str().unwrap_or_default();
        format!("{} {step}", event["what"].as_str().unwrap_or_default())
            .trim()
            .to_owned()
    };
    events.iter().map(word).collect()
}

#[test]
fn a_run_is_told_step_by_step() -> Result<()> {
    in_each_mode("events", |sandboxed, fixture| {
        let first = sandboxed.run_with(fixture, &["--name", "first"], "echo one > one")?;
        sandboxed.run_with(fixture, &[], "exit 3")?;
        let all = lines(&sandboxed.look(fixture, &["events", "--json"])?)?;
        let numbers: Vec<i64> = all
            .iter()
            .filter_map(|own| own["sequence"].as_i64())
            .collect();
        ensure!(numbers.is_sorted(), "out of order: {numbers:?}");
        let own = lines(&sandboxed.look(fixture, &["events", "first", "--json"])?)?;
        let expected = [
            "run.began",
            "run.step base",
            "run.step start",
            "run.step agent",
            "run.step seal",
            "run.step pack",
            "run.step hold",
            "run.ended",
        ];
        ensure!(words(&own) == expected, "{own:?}");
        let end = &own[own.len() - 1];
        ensure!(end["subject"] == first["run"], "{end}");
        ensure!(
            end["detail"]["status"] == "done" && end["detail"]["changed_files"] == 1,
            "{end}"
        );
        let last = lines(&sandboxed.look(fixture, &["events", "last", "-n", "1", "--json"])?)?;
        ensure!(last[0]["detail"]["exit_code"] == 3, "{last:?}");
        ensure!(last[0]["detail"]["status"] == "failed", "{last:?}");
        let text = sandboxed.look(fixture, &["events", "-n", "1"])?;
        ensure!(
            text.contains("run.ended") && text.contains("status=failed"),
            "{text}"
        );
        // What is gone has events still.
        sandboxed.look(fixture, &["rm", "first"])?;
        let id = first["run"].as_str().context("no id")?;
        let own = lines(&sandboxed.look(fixture, &["events", id, "--json", "-n", "1"])?)?;
        ensure!(words(&own) == ["run.removed"], "{own:?}");
        let output = sandboxed.call(fixture).finish(&["events", "nobody"])?;
        ensure!(
            output.stderr.contains("there is no run `nobody`"),
            "{}",
            output.stderr
        );
        Ok(())
    })
}

#[test]
fn who_follows_is_told_as_it_happens() -> Result<()> {
    in_each_mode("events-follow", |sandboxed, fixture| {
        sandboxed.run_with(fixture, &["--name", "before"], "true")?;
        let mut live = sandboxed
            .call(fixture)
            .live(&["events", "--follow", "-n", "1"])?;
        // It listens now.
        live.until_having("run.ended")?;
        sandboxed.run_with(fixture, &["--name", "meanwhile"], "true")?;
        live.until_having("name=meanwhile")?;
        live.until_having("run.ended")?;
        // Whoever started the tests may have had interrupts ignored.
        live.signal(rustix::process::Signal::TERM)?;
        let output = live.finish()?;
        ensure!(!output.stdout.contains("name=before"), "{}", output.stdout);
        Ok(())
    })
}
