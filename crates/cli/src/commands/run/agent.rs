//! `ringfence run --agent`: an agent by name, and what it is told.

use std::fs::File;
use std::io::{IsTerminal as _, Read};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;
use ringfence_model::agent::Usage;
use ringfence_model::task::MAX_BRIEF;

#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Start the agent of this name; words after `--` are added to its command
    #[arg(long, value_name = "NAME", conflicts_with_all = ["shell", "attempts"])]
    pub agent: Option<String>,
    /// What the agent is to do [default: what is on standard input]. A command reads it from its
    /// standard input, or has it where a word has `{brief}`
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["task", "shell", "prompt_file"])]
    prompt: Option<String>,
    /// A file that says what it is to do
    #[arg(long, value_name = "FILE", conflicts_with_all = ["task", "shell"])]
    prompt_file: Option<PathBuf>,
}

impl AgentArgs {
    /// Whether there is an agent by name, or words for a command besides its own.
    pub fn is_told(&self) -> bool {
        self.agent.is_some() || self.prompt.is_some() || self.prompt_file.is_some()
    }

    /// What it is to do.
    pub fn prompt(&self) -> anyhow::Result<String> {
        let text = match (&self.prompt, &self.prompt_file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => {
                let name = path.display().to_string();
                let file = File::open(path).with_context(|| format!("cannot open `{name}`"))?;
                ensure!(file.metadata()?.is_file(), "`{name}` is not a regular file");
                read(file, &name)?
            }
            (None, None) => {
                let stdin = std::io::stdin();
                ensure!(
                    !stdin.is_terminal(),
                    "the agent is told nothing: give `--prompt TEXT` or `--prompt-file FILE`"
                );
                read(stdin, "standard input")?
            }
        };
        ensure!(
            !text.trim().is_empty(),
            "the agent is told nothing: the prompt is empty"
        );
        Ok(text)
    }
}

/// For a person: `12,000 tokens in, 340 out, $0.12`.
pub fn said(usage: &Usage) -> String {
    let mut words = Vec::new();
    if let Some(count) = usage.input_tokens {
        words.push(format!("{count} tokens in"));
    }
    if let Some(count) = usage.output_tokens {
        words.push(format!("{count} out"));
    }
    if let Some(micros) = usage.cost_usd_micros {
        let (whole, rest) = (micros / 1_000_000, micros % 1_000_000 / 100);
        words.push(format!("${whole}.{rest:04}"));
    }
    if words.is_empty() {
        "nothing of what it used".to_owned()
    } else {
        words.join(", ")
    }
}

fn read(from: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_BRIEF as u64 + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    ensure!(
        bytes.len() <= MAX_BRIEF,
        "{name} has more than {MAX_BRIEF} bytes: put what is long into a file of the folder, and name it"
    );
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
        .with_context(|| format!("{name} is not text"))
}
