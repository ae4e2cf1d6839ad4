//! The corpus: which attacks there are, and which of them do not run here.

use anyhow::{Context, Result, bail};
use serde_json::Value;

const CORPUS: &str = include_str!("../../../../tests/escape/corpus.jsonl");
const MORE: &str = include_str!("../../../../tests/escape/more.jsonl");

/// How it is seen that an attack worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oracle {
    /// Exit code 0 inside means that it worked.
    ExitNonzero,
    /// What the agent left is looked at on the host, which must not run any of it.
    HostCanary,
    /// Nothing may be running afterwards.
    HostNoProcess,
    /// What comes out is as described, by a function for each case.
    Record,
}

/// One attack that runs.
#[derive(Debug)]
pub struct Case {
    pub id: String,
    pub title: String,
    pub command: String,
    pub oracle: Oracle,
}

/// Cases that do not run here, each with the reason.
pub const NOT_HERE: &[(&str, &str)] = &[
    ("env-011", "there is no gate and no proxy token yet"),
    (
        "fs-026",
        "a sandbox starts from the folder, never from what an earlier run left",
    ),
    (
        "fs-027",
        "`/dev` is made by the launcher on an empty tmpfs, whatever an image has there",
    ),
    (
        "fs-028",
        "`/dev/pts` is a fresh devpts on an empty tmpfs, whatever an image has there",
    ),
    ("fs-037", "there is no upload of archives"),
    ("fs-038", "there is no upload of archives"),
    (
        "fs-040",
        "the same bound as proc-016, with a million files; too slow for every change",
    ),
    ("git-029", "no tree that an agent made is ever checked out"),
    (
        "kern-015",
        "prose; kern-142 and kern-143 do it with a program",
    ),
];

/// Cases that mean nothing where the root is an image, each with the reason.
pub const NOT_ON_IMAGE: &[(&str, &str)] = &[(
    "proc-016",
    "fills the layer with files, which is the same layer; slow, and run twice already",
)];

/// Cases that the corpus tells in prose and that run here all the same.
const TOLD: &[(&str, Oracle, &str)] = &[
    (
        "fs-024",
        Oracle::Record,
        "cd /workspace; (while :; do ln -sfn /etc/passwd f; rm -f f; echo ok > f; done) & sleep 0.3; exit 0",
    ),
    (
        "fs-025",
        Oracle::Record,
        "cd /workspace; mkdir d; echo x > d/passwd; (while :; do mv d d2; ln -s /etc d; rm d; mv d2 d; done) & sleep 0.3; exit 0",
    ),
    (
        "fs-053",
        Oracle::Record,
        "echo more >> /workspace/foreign.txt && cat /workspace/foreign.txt && mv /workspace/foreign.txt /workspace/moved.txt",
    ),
    (
        "git-030",
        Oracle::HostCanary,
        "cd /workspace; printf '#!/bin/sh\\ntouch /tmp/CANARY-%s\\n' host > ev.sh; chmod +x ev.sh; git config core.fsmonitor /workspace/ev.sh; git status",
    ),
];

/// Every case of both files that runs here. Fails where one is neither run nor listed.
pub fn load() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut listed = 0;
    for line in CORPUS.lines().chain(MORE.lines()) {
        let raw: Value = serde_json::from_str(line).with_context(|| format!("in `{line}`"))?;
        let text = |key: &str| raw[key].as_str().unwrap_or_default().to_owned();
        let (id, title) = (text("id"), text("title"));
        if NOT_HERE.iter().any(|(name, _)| *name == id) {
            listed += 1;
            continue;
        }
        let told = TOLD.iter().find(|(name, _, _)| *name == id);
        let (oracle, command) = match (told, raw["inside_command"].as_str()) {
            (Some((_, oracle, command)), None) => (*oracle, (*command).to_owned()),
            (None, Some(command)) => (oracle(&text("oracle"), &id)?, command.to_owned()),
            (Some(_), Some(_)) => bail!("`{id}` has a command and is told again here"),
            (None, None) => bail!("`{id}` is neither run nor listed in NOT_HERE"),
        };
        cases.push(Case {
            id,
            title,
            command,
            oracle,
        });
    }
    if listed != NOT_HERE.len() {
        bail!("NOT_HERE lists a case that the corpus does not have");
    }
    Ok(cases)
}

fn oracle(word: &str, id: &str) -> Result<Oracle> {
    Ok(match word {
        "exit_nonzero" => Oracle::ExitNonzero,
        "host_canary" => Oracle::HostCanary,
        "host_no_process" => Oracle::HostNoProcess,
        "record" => Oracle::Record,
        _ => bail!("`{id}` has the unknown oracle `{word}`"),
    })
}
