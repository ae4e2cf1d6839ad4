//! What operators see of a campaign: its tasks, its queue and its budget, and each run within it.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::campaign::running::prepare;
use crate::support::in_each_mode;

#[test]
fn a_campaign_is_traced_with_its_queue_and_budget() -> Result<()> {
    in_each_mode("traced", |env, fixture| {
        let files = [
            ("src/a.txt", "old a\n"),
            ("src/b.txt", "crash\n"),
            ("src/c.txt", "old c\n"),
        ];
        let budget = "[run]\nparallel = 1\n[budget]\ntasks = 2\n";
        prepare(env, fixture, &files, budget)?;
        ensure!(env.runs(fixture, &[])?.is_empty());
        let log = fixture.state.join("trace.log");
        let call = env
            .call(fixture)
            .variable("RINGFENCE_LOG", "ringfence_engine=debug")
            .variable("RINGFENCE_LOG_FORMAT", "json")
            .variable("RINGFENCE_LOG_FILE", &log.to_string_lossy());
        call.finish(&["campaign", "run", "plan.toml"])?.exits(1)?;
        let text = fs::read_to_string(&log)?;
        let lines = text.lines().map(serde_json::from_str);
        let lines = lines.collect::<Result<Vec<Value>, _>>()?;
        let said = |message: &'static str| {
            let own = lines.iter();
            own.filter(move |line| line["fields"]["message"] == message)
        };
        for (message, count) in [
            ("campaign began", 1),
            ("task began", 2),
            ("queue", 2),
            ("run ended", 2),
            ("nothing more is begun", 1),
            ("task ended", 3),
            ("campaign ended", 1),
        ] {
            ensure!(said(message).count() == count, "{message}: {text}");
        }
        let states: Vec<&Value> = said("task ended")
            .map(|line| &line["fields"]["state"])
            .collect();
        ensure!(states == ["passed", "failed", "skipped"], "{states:?}");
        // Also what happens on other threads is within its run and its campaign.
        for message in ["step done", "check done", "sandbox started"] {
            ensure!(said(message).count() > 0, "no {message}: {text}");
            for line in said(message) {
                let spans = [&line["spans"][0]["name"], &line["spans"][1]["name"]];
                ensure!(spans == ["campaign", "run"], "{line}");
            }
        }
        Ok(())
    })
}
