//! A check that comes later is in the place that the run had.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::support::in_each_mode;

#[test]
fn a_later_check_sees_what_the_run_saw() -> Result<()> {
    in_each_mode("rechecked", |env, fixture| {
        env.put(fixture, "secret.txt", "s")?;
        let run = env.call(fixture).finish(&[
            "run",
            "--json",
            "--hide",
            "secret.txt",
            "--same-path",
            "--env",
            "X=1",
            "--check",
            "grep -q never a.txt",
            "--",
            "sh",
            "-c",
            "echo x > x.txt",
        ])?;
        run.exits(5)?;
        let run = run.json.context("no result")?;
        let run = run["run"].as_str().context("no run")?.to_owned();
        let place = fixture.folder.to_string_lossy();
        let at = format!("test \"$PWD\" = '{place}'");
        for (check, code) in [
            ("test ! -e secret.txt", 0),
            (at.as_str(), 0),
            ("test \"$X\" = 1", 5),
        ] {
            let output = env
                .call(fixture)
                .finish(&["check", &run, "--check", check])?;
            output.exits(code).with_context(|| check.to_owned())?;
            ensure!(
                output.stderr.contains("give them with `--env`: X"),
                "{}",
                output.stderr
            );
        }
        let words = ["check", &run, "--env", "X=1", "--check", "test \"$X\" = 1"];
        let output = env.call(fixture).finish(&words)?;
        output.exits(0)?;
        ensure!(!output.stderr.contains("give them"), "{}", output.stderr);
        // What failed in the run still has, whatever passed since.
        let again = env.run_with(fixture, &[], "echo y > x.txt")?;
        let other = again["run"].as_str().context("no run")?;
        let compared = env.look(fixture, &["compare", &run, other, "--json"])?;
        let compared: Value = serde_json::from_str(&compared)?;
        let first = &compared["attempts"][0];
        ensure!(first["checks"] == 4 && first["checks_held"] == 3, "{first}");
        Ok(())
    })
}
