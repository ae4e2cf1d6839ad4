//! `ringfence policy explain`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::policy::{self, Asked, PolicyError};
use ringfence_model::environment::Environment;
use ringfence_model::limits::{HumanBytes, Limit, Limits};
use ringfence_model::policy::explain::{Explanation, Question, Said};
use ringfence_model::policy::network::Effect;
use ringfence_model::policy::{Effective, Line, SecretSource};
use serde_json::json;

use crate::commands::open;
use crate::text::{clean, clean_json};

/// Say what a policy allows, and which line of which file says so
///
/// Of a path of the workspace: whether it is hidden, can be written, and crosses back. Of a URL
/// (`https://host/path`, `POST https://host/path`) or `tcp host:port`: whether it is allowed, and
/// the rule that would allow it. Without either: the whole policy.
#[derive(Debug, Args)]
pub struct Explain {
    /// A file, `offline`, `standard` or `online` [default: `policy.toml` in the home of ringfence]
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    policy: Option<PathBuf>,
    /// The folder, whose own `ringfence.toml` counts as well [default: the current directory]
    #[arg(long, value_name = "FOLDER", conflicts_with = "run")]
    repo: Option<PathBuf>,
    /// The policy that a run had: its id, the beginning of that, its name, or `last`
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// A path of the workspace, a URL, or `tcp HOST:PORT`
    #[arg(value_name = "PATH|URL")]
    question: Vec<String>,
}

/// A policy, and whose it is.
struct Found {
    effective: Effective,
    /// Of a run: its id and the hash over all that steered it.
    run: Option<(String, String)>,
    refused: Vec<String>,
}

impl Explain {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let question = match self.question.join(" ") {
            text if text.is_empty() => None,
            text => Some(read_question(text)?),
        };
        let found = self.find()?;
        let mut out = io::stdout().lock();
        match question {
            Some(question) => {
                let explanation = found.effective.explain(&question);
                if self.json {
                    let text = serde_json::to_string(&explanation)?;
                    writeln!(out, "{}", clean_json(&text))?;
                } else {
                    tell(&mut out, &explanation)?;
                }
            }
            None if self.json => {
                let value = json!({
                    "run": found.run.as_ref().map(|(run, _)| run),
                    "policy_sha256": found.run.as_ref().map(|(_, sha256)| sha256),
                    "policy": found.effective.published(),
                    "refused": found.refused,
                });
                writeln!(out, "{}", clean_json(&value.to_string()))?;
            }
            None => tell_whole(&mut out, &found)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn find(&self) -> anyhow::Result<Found> {
        if let Some(run) = &self.run {
            let (home, store) = open()?;
            let of = policy::of_run(&home, store.find(run)?.id)?;
            return Ok(Found {
                effective: of.policy.effective.unwrap_or_default(),
                run: Some((of.run.to_string(), of.sha256)),
                refused: Vec::new(),
            });
        }
        let home = Home::open(None).map_err(Error::from)?;
        let folder = match &self.repo {
            Some(folder) => folder.clone(),
            None => std::env::current_dir()?,
        };
        let host = policy::of_host(&home, self.policy.as_deref(), Some(&folder));
        let asked = Asked {
            host: host.map_err(Error::Policy)?,
            ..Asked::nothing(Limits::for_host(ringfence_jail::total_memory_bytes()))
        };
        let settled = asked.settle(&home, &folder).map_err(Error::Policy)?;
        Ok(Found {
            refused: settled.refused.iter().map(ToString::to_string).collect(),
            effective: settled.effective,
            run: None,
        })
    }
}

fn read_question(question: String) -> Result<Question, Error> {
    Question::parse(&question)
        .map_err(|source| Error::Policy(PolicyError::Question { question, source }))
}

fn tell(out: &mut dyn Write, explanation: &Explanation) -> io::Result<()> {
    match explanation {
        Explanation::Path {
            path,
            hidden,
            write,
            export,
        } => {
            writeln!(out, "{}", clean(path))?;
            if let Some(line) = hidden {
                return writeln!(out, "  hidden: {}", by(line));
            }
            writeln!(out, "  visible")?;
            let said = |yes: &'static str, no: &'static str, said: &Said| {
                let word = if said.yes { yes } else { no };
                match &said.by {
                    Some(line) => format!("{word}: {}", by(line)),
                    None => word.to_owned(),
                }
            };
            writeln!(out, "  {}", said("can be written", "read-only", write))?;
            writeln!(out, "  {}", said("crosses back", "stays behind", export))
        }
        Explanation::Network {
            allowed,
            double,
            reason,
            rule,
            would_allow,
            ..
        } => {
            let word = if *allowed { "allowed" } else { "denied" };
            match (double, rule, reason) {
                (Some(to), ..) => writeln!(out, "allowed: a double at {to} answers")?,
                (None, Some(line), _) => writeln!(out, "{word}: {}", by(line))?,
                (None, None, Some(reason)) => {
                    let word = reason.as_str();
                    writeln!(out, "denied: no rule allows this {word}")?;
                }
                (None, None, None) => writeln!(out, "{word}")?,
            }
            if let Some(line) = would_allow {
                writeln!(out, "  this rule would allow it: {}", clean(line))?;
            }
            Ok(())
        }
    }
}

fn by(line: &Line) -> String {
    clean(&format!("`{}` ({})", line.text, line.from))
}

/// The whole policy, item by item, as it is and not as it was written.
fn tell_whole(out: &mut dyn Write, found: &Found) -> io::Result<()> {
    if let Some((run, sha256)) = &found.run {
        writeln!(out, "# run {run}, policy {sha256}")?;
    }
    let policy = &found.effective;
    let mut say = |key: &str, item: &str, from: &str| {
        writeln!(out, "{key:<16} {}  # {}", clean(item), clean(from))
    };
    let files = &policy.files;
    for (key, lines) in [
        ("files.hide", Some(&files.hide)),
        ("files.write", files.write.as_ref()),
        ("files.read_only", Some(&files.read_only)),
        ("files.export", files.export.as_ref()),
        ("env.pass", Some(&policy.env.pass)),
        ("repositories.hosts", Some(&policy.sources.repositories)),
        ("images.registries", Some(&policy.sources.registries)),
    ] {
        for line in lines.into_iter().flatten() {
            say(key, &line.text, &line.from.to_string())?;
        }
    }
    for (key, list) in [
        ("files.write", &files.write),
        ("files.export", &files.export),
    ] {
        if list.as_ref().is_some_and(Vec::is_empty) {
            say(key, "nothing", "an empty list")?;
        }
    }
    for mount in &files.mounts {
        let access = if mount.writable {
            "writable"
        } else {
            "read-only"
        };
        let (host, inside) = (mount.host.display(), mount.inside.display());
        let item = format!("{host} at {inside}, {access}");
        say("files.mount", &item, &mount.from.to_string())?;
    }
    for rule in &policy.network.rules.0 {
        let key = match rule.effect {
            Effect::Allow => "network.allow",
            Effect::Deny => "network.deny",
        };
        say(key, &rule.to_string(), &rule.from.to_string())?;
    }
    for mock in &policy.network.mocks {
        say("network.mock", &mock.host.to_string(), &mock.to.to_string())?;
    }
    if policy.network.is_offline() {
        say("network", "none", "nothing allows any")?;
    }
    for secret in &policy.secrets {
        let source = match &secret.source {
            SecretSource::Env(name) => format!("env:{name}"),
            SecretSource::File(path) => format!("file:{}", path.display()),
            SecretSource::Command(_) => "command".to_owned(),
        };
        let hosts: Vec<String> = secret.hosts.iter().map(ToString::to_string).collect();
        let item = format!("{} of {source} for {}", secret.name, hosts.join(", "));
        say("secrets", &item, &secret.from.to_string())?;
    }
    for (name, variable) in &policy.env.set {
        say("env.set", name, &variable.from.to_string())?;
    }
    tell_environment(&policy.environment, &mut say)?;
    for (limit, bound) in &policy.limits {
        let key = format!("limits.{}", limit.as_str());
        let most = bound
            .most
            .map_or("none".to_owned(), |most| quantity(*limit, most));
        say(&key, &most, &bound.from.to_string())?;
    }
    let review = &policy.review;
    for (key, lines) in [
        ("review.checks", &review.checks),
        ("review.protected", &review.protected),
    ] {
        for line in lines {
            say(key, &line.text, &line.from.to_string())?;
        }
    }
    for rule in &review.network.0 {
        say("review.network", &rule.to_string(), &rule.from.to_string())?;
    }
    for refused in &found.refused {
        writeln!(out, "# {}", clean(refused))?;
    }
    Ok(())
}

fn tell_environment(
    environment: &Environment,
    say: &mut dyn FnMut(&str, &str, &str) -> io::Result<()>,
) -> io::Result<()> {
    let one = |key, line: &Option<Line>| line.clone().map(|line| (key, line));
    let lines = one("environment.image", &environment.image)
        .into_iter()
        .chain(one("environment.setup", &environment.setup))
        .chain(
            environment
                .key
                .iter()
                .map(|line| ("environment.key", line.clone())),
        )
        .chain(
            environment
                .path
                .iter()
                .map(|line| ("environment.path", line.clone())),
        );
    for (key, line) in lines {
        say(key, &line.text, &line.from.to_string())?;
    }
    if let Some(from) = &environment.root {
        say("environment.root", "true", &from.to_string())?;
    }
    for rule in &environment.network.rules.0 {
        say(
            "environment.network",
            &rule.to_string(),
            &rule.from.to_string(),
        )?;
    }
    for (name, variable) in &environment.env {
        say("environment.env", name, &variable.from.to_string())?;
    }
    for (kind, switch) in &environment.caches {
        let item = format!("{} = {}", kind.row().name, switch.on);
        say("environment.cache", &item, &switch.from.to_string())?;
    }
    for area in &environment.tmpfs {
        let item = format!("{} of {}", area.inside.display(), HumanBytes(area.bytes));
        say("mounts.tmpfs", &item, &area.from.to_string())?;
    }
    Ok(())
}

fn quantity(limit: Limit, most: u64) -> String {
    match limit {
        Limit::Time | Limit::Cpu => format!("{most} seconds"),
        Limit::Memory | Limit::FileSize | Limit::Disk | Limit::Output => {
            HumanBytes(most).to_string()
        }
        _ => most.to_string(),
    }
}
