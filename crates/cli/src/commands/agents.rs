//! `ringfence agents`.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::agents::{self, AgentError, NotInstalled, Place, Seen};
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use serde_json::{Value, json};

use crate::text::{clean, clean_json};

/// List the agents that `run --agent` and plans can name, and what each needs
///
/// For each: whether its program is on this host, where and in which version, whether a key for it is
/// set, and what it reaches. No program is started and no value of a key is shown.
///
/// A file `agents/NAME.toml` in the home of Ringfence is an agent of your own, or changes one of
/// these. `ringfence agents NAME` shows one in full.
#[derive(Debug, Args)]
pub struct Agents {
    /// Only this one, in full
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Agents {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let home = Home::open(None)?;
        let mut out = std::io::stdout().lock();
        if let Some(name) = &self.name {
            let seen = agents::look(&home, name).map_err(Error::Agent)?;
            if self.json {
                print_json(&mut out, &seen)?
            } else {
                tell(&mut out, &seen)?
            }
            return Ok(ExitCode::SUCCESS);
        }
        for name in agents::names(&home) {
            match agents::look(&home, &name) {
                Ok(seen) if self.json => print_json(&mut out, &seen)?,
                Ok(seen) => line(&mut out, &seen)?,
                // A file of the user's that is wrong is told, and the others are listed.
                Err(error) => broken(&mut out, &name, &error, self.json)?,
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn broken(out: &mut dyn Write, name: &str, error: &AgentError, json: bool) -> std::io::Result<()> {
    if json {
        let value = json!({ "agent": name, "ready": false, "error": error.to_string() });
        return writeln!(out, "{}", clean_json(&value.to_string()));
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    writeln!(out, "{name:<10} cannot be used: {}", clean(first))?;
    writeln!(out, "{:<10}   see: ringfence agents {name}", "")
}

/// One agent in a few lines.
fn line(out: &mut dyn Write, seen: &Seen) -> std::io::Result<()> {
    let preset = &seen.known.preset;
    let ready = if seen.is_ready() {
        "ready"
    } else {
        "not ready"
    };
    let about = format!("{:<10} {:<9}  {}", preset.name, ready, preset.about);
    writeln!(out, "{}", clean(&about))?;
    writeln!(out, "{:<10}   {}", "", clean(&program(seen)))?;
    if let Some(missing) = missing_key(seen) {
        writeln!(out, "{:<10}   {}", "", clean(&missing))?;
    }
    Ok(())
}

/// Where its program is, or the command that installs it.
fn program(seen: &Seen) -> String {
    let preset = &seen.known.preset;
    match &seen.installed {
        Ok(found) => {
            let version = found.version.as_deref().unwrap_or("version not known");
            format!("{version}, {}", found.host.display())
        }
        Err(why) => {
            let what = match why {
                NotInstalled::Nowhere => format!("`{}` is not installed", preset.command[0]),
                NotInstalled::Needs(program) => {
                    format!("`{program}`, which it needs, cannot be shown inside")
                }
                NotInstalled::CannotShow { path, why } => {
                    format!("`{}` cannot be shown inside: {why}", path.display())
                }
            };
            match &preset.install {
                Some(install) => format!("{what}; install it: {install}"),
                None => what,
            }
        }
    }
}

fn missing_key(seen: &Seen) -> Option<String> {
    let keys = seen.keys();
    if keys.is_empty() || keys.iter().any(|(_, is_set)| *is_set) {
        return None;
    }
    let names: Vec<&str> = keys.iter().map(|(name, _)| *name).collect();
    Some(format!("no key: set {}", names.join(" or ")))
}

/// One agent with all of it.
fn tell(out: &mut dyn Write, seen: &Seen) -> std::io::Result<()> {
    let preset = &seen.known.preset;
    let mut lines = vec![format!("{}  {}", preset.name, preset.about)];
    lines.push(format!("  program   {}", program(seen)));
    if let Ok(found) = &seen.installed {
        for shown in &found.shown {
            let (host, inside) = (shown.host.display(), shown.inside.display());
            lines.push(format!("            {host} is read at {inside}"));
        }
    }
    lines.push(format!("  command   {}", preset.command.join(" ")));
    if let Some(again) = &preset.again {
        lines.push(format!("  again     {}", again.join(" ")));
    }
    for (name, is_set) in seen.keys() {
        let state = if is_set { "set" } else { "not set" };
        lines.push(format!("  key       {name}: {state}"));
    }
    for rule in seen.rules() {
        lines.push(format!("  reaches   {rule}"));
    }
    match &seen.grants {
        Ok(grants) => {
            for name in grants.env.set.keys() {
                lines.push(format!("  variable  {name}"));
            }
        }
        Err(error) => lines.push(format!("  network   {error}")),
    }
    for file in &preset.home {
        lines.push(format!("  home      ~/{}", file.path.display()));
    }
    lines.push(match &seen.known.place {
        Place::BuiltIn => "  written   built in".to_owned(),
        Place::File(path) => format!("  written   {}", path.display()),
    });
    for text in lines {
        writeln!(out, "{}", clean(&text))?;
    }
    Ok(())
}

fn print_json(out: &mut dyn Write, seen: &Seen) -> std::io::Result<()> {
    writeln!(out, "{}", clean_json(&to_json(seen).to_string()))
}

fn to_json(seen: &Seen) -> Value {
    let preset = &seen.known.preset;
    let installed = match &seen.installed {
        Ok(found) => {
            let shown = found.shown.iter();
            let shown = shown.map(|shown| json!({ "host": shown.host, "inside": shown.inside }));
            json!({
                "path": found.host,
                "inside": found.inside,
                "version": found.version,
                "shown": shown.collect::<Vec<_>>(),
            })
        }
        Err(_) => Value::Null,
    };
    let missing = match &seen.installed {
        Ok(_) => None,
        Err(_) => Some(program(seen)),
    };
    let keys = seen.keys();
    let keys = keys.iter();
    let keys = keys.map(|(name, is_set)| json!({ "name": name, "set": is_set }));
    let rules: Vec<String> = seen.rules().map(ToString::to_string).collect();
    json!({
        "agent": preset.name,
        "about": preset.about,
        "ready": seen.is_ready(),
        "installed": installed,
        "missing": missing,
        "install": preset.install,
        "command": preset.command,
        "keys": keys.collect::<Vec<_>>(),
        "hosts": rules,
        "error": seen.grants.as_ref().err().map(ToString::to_string),
        "file": match &seen.known.place {
            Place::BuiltIn => None,
            Place::File(path) => Some(path),
        },
    })
}
