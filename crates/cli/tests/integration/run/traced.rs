//! Tracing: silent unless it is asked for, one line each, steps with their durations.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Sandboxed, in_each_mode};

fn lines(text: &str) -> Result<Vec<Value>> {
    let parse = |line: &str| serde_json::from_str(line).context(line.to_owned());
    text.lines().map(parse).collect()
}

fn run(env: &Sandboxed, fixture: &Fixture, variables: &[(&str, &str)]) -> Result<String> {
    // Its name would be two lines and a colour.
    let folder = fixture.folder.join("a\n\u{1b}[31mb");
    env.as_owner(
        fixture,
        &fixture.folder,
        &["mkdir", "-p", &folder.to_string_lossy()],
    )?;
    let mut call = env.call(fixture).folder(&folder);
    for (name, value) in variables {
        call = call.variable(name, value);
    }
    let words = ["run", "--json", "--check", "true", "--", "sh", "-c"];
    let output = call.finish(&[&words[..], &["echo 1 >> a.txt"]].concat())?;
    output.exits(0)?;
    Ok(output.stderr)
}

#[test]
fn a_run_is_traced_step_by_step_where_somebody_asks() -> Result<()> {
    in_each_mode("traced", |env, fixture| {
        let json = [("RINGFENCE_LOG", "info"), ("RINGFENCE_LOG_FORMAT", "json")];
        let all = lines(&run(env, fixture, &json)?)?;
        let said = |message: &'static str| {
            let own = all.iter().map(|line| &line["fields"]);
            own.filter(move |fields| fields["message"] == message)
        };
        let steps: Vec<&str> = said("step done")
            .filter_map(|fields| fields["step"].as_str())
            .collect();
        let expected = [
            "base", "start", "prove", "agent", "stop", "seal", "pack", "hold",
        ];
        ensure!(steps == expected, "{steps:?}");
        ensure!(said("step done").all(|fields| fields["ms"].is_u64()));
        ensure!(said("run ended").count() == 1, "{all:?}");
        let trees: Vec<&Value> = said("check done").map(|fields| &fields["tree"]).collect();
        ensure!(trees == ["base", "patched"], "{trees:?}");
        let run = env.runs(fixture, &[])?[0]["run"].clone();
        for line in &all {
            let span = &line["spans"][0];
            ensure!(span["name"] == "run" && span["id"] == run, "{line}");
            ensure!(span["backend"] == "native", "{line}");
            ensure!(line["level"] == "INFO", "{line}");
        }
        Ok(())
    })
}

#[test]
fn a_trace_disturbs_nobody() -> Result<()> {
    in_each_mode("untraced", |env, fixture| {
        let plain = run(env, fixture, &[])?;
        ensure!(
            !plain.contains("step") && !plain.contains("INFO"),
            "{plain}"
        );
        let file = fixture.state.join("trace.log");
        let path = file.to_string_lossy();
        let beside = [("RINGFENCE_LOG", "trace"), ("RINGFENCE_LOG_FILE", &*path)];
        for _ in 0..2 {
            let stderr = run(env, fixture, &beside)?;
            ensure!(
                stderr.lines().count() == plain.lines().count() && !stderr.contains("step done"),
                "{stderr}"
            );
        }
        let text = fs::read_to_string(&file)?;
        // Appended to, and nobody's words are lines or colours of it.
        ensure!(text.matches("run ended").count() == 2, "{text}");
        ensure!(text.lines().all(|line| line.starts_with("20")), "{text}");
        ensure!(!text.contains('\u{1b}'), "{text:?}");
        ensure!(text.contains("sandbox started") && text.contains("sandbox proven"));
        Ok(())
    })
}

#[test]
fn a_trace_that_cannot_be_had_is_said_before_anything_begins() -> Result<()> {
    in_each_mode("mistraced", |env, fixture| {
        for (variables, named) in [
            ([("RINGFENCE_LOG", "inof"), ("X", "")], "inof"),
            ([("RINGFENCE_LOG", "info,ringfence=x"), ("X", "")], "filter"),
            (
                [("RINGFENCE_LOG", "info"), ("RINGFENCE_LOG_FORMAT", "xml")],
                "xml",
            ),
            (
                [
                    ("RINGFENCE_LOG", "info"),
                    ("RINGFENCE_LOG_FILE", "/no/where"),
                ],
                "/no/where",
            ),
        ] {
            let mut call = env.call(fixture);
            for (name, value) in variables {
                call = call.variable(name, value);
            }
            let output = call.finish(&["run", "--", "true"])?;
            output.exits(2)?;
            ensure!(output.stderr.starts_with("error: "), "{}", output.stderr);
            ensure!(output.stderr.contains(named), "{}", output.stderr);
        }
        ensure!(env.runs(fixture, &[])?.is_empty());
        Ok(())
    })
}
