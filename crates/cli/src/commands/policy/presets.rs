//! `ringfence policy presets`.

use std::error::Error as _;
use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::error::Error;
use ringfence_engine::presets::{self, ALL, Known, PresetError, Resolution, Surroundings};
use ringfence_model::policy::SecretSource;
use serde_json::{Value, json};

use crate::text::{clean, clean_json};

/// Show what each preset stands for on this host, and where that was found
///
/// The hosts of a package manager are taken from its own settings: variables, files, and where
/// nothing is set, what the client itself answers. It is asked in `/`, with nothing of the
/// environment that is not its own. Passwords in addresses are left out.
///
/// To pin a preset, write its rules into your own policy file instead of `preset:NAME`.
#[derive(Debug, Args)]
pub struct Presets {
    /// Only this one
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Presets {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let known: Vec<&Known> = match &self.name {
            None => ALL.iter().collect(),
            Some(name) => {
                let known = ALL.iter().find(|known| known.name == name);
                let unknown = || PresetError::Unknown(name.chars().take(64).collect());
                vec![known.ok_or_else(unknown).map_err(Error::Preset)?]
            }
        };
        let folder = std::env::current_dir().ok();
        let surroundings = Surroundings::of_process(folder.as_deref().filter(|f| is_a_project(f)));
        let mut out = std::io::stdout().lock();
        let mut failed = None;
        for one in &known {
            let found = presets::look(one.name, &surroundings);
            if self.json {
                writeln!(out, "{}", clean_json(&json(one, &found).to_string()))?;
            } else if found.is_ok() || self.name.is_none() {
                tell(&mut out, one, &found)?;
            }
            failed = found.err();
        }
        // Of one that was asked for by name, the failure is the answer.
        match (failed, self.name) {
            (Some(error), Some(_)) if !self.json => Err(Error::Preset(error).into()),
            (Some(_), Some(_)) => Ok(ExitCode::from(4)),
            _ => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Where a run would take nothing from: a folder that somebody works in, not a home.
fn is_a_project(folder: &std::path::Path) -> bool {
    folder.join(".git").exists()
}

fn tell(
    out: &mut dyn Write,
    known: &Known,
    found: &Result<Resolution, PresetError>,
) -> std::io::Result<()> {
    writeln!(out, "{}  {}", known.name, known.about)?;
    let resolution = match found {
        Ok(resolution) => resolution,
        Err(error) => {
            writeln!(out, "    not here: {}", clean(&because(error)))?;
            return Ok(());
        }
    };
    let preset = &resolution.preset;
    let rules: Vec<String> = preset.rules.iter().map(ToString::to_string).collect();
    let width = rules
        .iter()
        .map(String::len)
        .max()
        .unwrap_or_default()
        .min(60);
    for (rule, text) in preset.rules.iter().zip(&rules) {
        let from = rule.from.to_string();
        let from = match from.split_once(" from ") {
            Some((_, from)) => format!("  from {from}"),
            None => String::new(),
        };
        let line = format!("    {text:<width$}{from}");
        writeln!(out, "{}", clean(line.trim_end()))?;
    }
    for (name, value) in &preset.env {
        writeln!(out, "    {}", clean(&format!("{name}={value}")))?;
    }
    for secret in &preset.secrets {
        let hosts: Vec<String> = secret.hosts.iter().map(ToString::to_string).collect();
        let line = format!(
            "    secret {} at {}, in `{}`",
            secret.name,
            hosts.join(", "),
            secret.header
        );
        writeln!(out, "{}", clean(&line))?;
    }
    for note in &resolution.notes {
        writeln!(out, "    note: {}", clean(note))?;
    }
    Ok(())
}

/// An error with its cause.
fn because(error: &PresetError) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn json(known: &Known, found: &Result<Resolution, PresetError>) -> Value {
    let resolution = match found {
        Ok(resolution) => resolution,
        Err(error) => {
            return json!({
                "preset": known.name,
                "about": known.about,
                "ok": false,
                "error": because(error),
                "hint": error.hint(),
            });
        }
    };
    let preset = &resolution.preset;
    let rules = preset
        .rules
        .iter()
        .map(|rule| json!({ "rule": rule.to_string(), "from": rule.from.to_string() }));
    let secrets = preset.secrets.iter().map(|secret| {
        let from = match &secret.source {
            SecretSource::Env(name) => format!("env:{name}"),
            SecretSource::File(path) => format!("file:{}", path.display()),
            SecretSource::Command(_) => "command:".to_owned(),
        };
        json!({
            "name": secret.name,
            "from": from,
            "hosts": secret.hosts,
            "header": secret.header,
        })
    });
    json!({
        "preset": known.name,
        "about": known.about,
        "ok": true,
        "rules": rules.collect::<Vec<_>>(),
        "indexes": preset.indexes,
        "env": preset.env,
        "secrets": secrets.collect::<Vec<_>>(),
        "notes": resolution.notes,
    })
}
